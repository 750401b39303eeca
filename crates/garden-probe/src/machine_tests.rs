//! Tests of the surroundings: the parsers on text, the rest on this machine and on a cgroup made for the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use garden_memory::MIB;

use super::*;

#[test]
fn numbers_are_found_in_the_kernels_texts() {
    let meminfo = "MemTotal:       24605476 kB\nMemAvailable: 1 kB\n";
    assert_eq!(kib_of(meminfo, "MemTotal:"), Some(24605476 * 1024));
    assert_eq!(kib_of("nothing", "MemTotal:"), None);
    let stat = "active_file 1\ninactive_file 20\ntotal_active_file 300\n";
    assert_eq!(number_of(stat, "active_file"), Some(1));
    assert_eq!(number_of(stat, "total_active_file"), Some(300));
    assert_eq!(number_of(stat, "active"), None);
    assert_eq!((limit_of("max\n"), limit_of("9223372036854771712\n"), limit_of("4096\n")), (None, None, Some(4096)));
    let pressure = "some avg10=12.34 avg60=1.00 avg300=0.00 total=7\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
    assert_eq!((pressure_of(pressure), pressure_of("")), (Some(1234), None));
}

#[test]
fn this_machine_has_a_limit_and_something_left() {
    assert!(memory_limit().is_some_and(|limit| limit.0 > 0));
    let around = MachineProbe::of(std::process::id()).look();
    assert!(around.available.is_some_and(|bytes| bytes > 0), "{around:?}");
    assert!(around.headroom.is_some_and(|bytes| bytes > 0), "{around:?}");
    // A process that does not exist is assumed to be in our cgroup.
    assert!(MachineProbe::of(u32::MAX).look().headroom.is_some());
}

#[test]
fn files_in_shared_memory_are_seen() {
    let Some(before) = shared_memory_used() else {
        garden_testing::skip("/dev/shm is not in memory");
        return;
    };
    let path = format!("/dev/shm/garden-probe-{}", std::process::id());
    fs::write(&path, vec![1_u8; 16 << 20]).unwrap();
    let during = shared_memory_used().unwrap();
    fs::remove_file(&path).unwrap();
    assert!(during >= before + 15 * MIB, "{before} {during}");
}

#[test]
fn a_group_of_version_2_has_room_for_what_can_be_taken_back() {
    let folder = std::env::temp_dir().join(format!("garden-probe-version-2-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: String| fs::write(folder.join(name), text).unwrap();
    let stat = |file: u64| {
        let (active, inactive, slab) = (20 * MIB, file - 20 * MIB, 10 * MIB);
        format!("anon 7\nactive_file {active}\ninactive_file {inactive}\nslab_reclaimable {slab}\nshmem 9\n")
    };
    write("memory.max", format!("{}\n", 200 * MIB));
    write("memory.stat", stat(50 * MIB));
    let mut buffer = vec![0; 8192];
    write("memory.current", format!("{}\n", 100 * MIB));
    let mut group = Group::open(Version::Two, &folder).unwrap();
    group.look(true, true, &mut buffer);
    assert_eq!((group.used, group.limit_bytes, group.room()), (Some(100 * MIB), Some(200 * MIB), Some(160 * MIB)));
    // A little more use does not make `memory.stat` be read again; much more does.
    write("memory.stat", stat(70 * MIB));
    let mut room_at = |used: u64| {
        write("memory.current", format!("{}\n", used * MIB));
        group.look(true, false, &mut buffer);
        (group.used.unwrap() / MIB, group.room().unwrap() / MIB)
    };
    assert_eq!([room_at(110), room_at(130)], [(110, 160), (130, 150)]);
    fs::remove_dir_all(&folder).unwrap();
}

/// A memory cgroup with a limit; removed at the end.
struct TestGroup {
    folder: PathBuf,
    child: Option<Child>,
}

impl TestGroup {
    fn make(limit: u64) -> Option<TestGroup> {
        let place = groups::find(std::process::id()).into_iter().find(|place| !Group::all_of(place).is_empty())?;
        // A group of version 2 with processes cannot delegate its controllers: go to the top.
        let folder = place.folders().last()?.join(format!("garden-probe-{}", std::process::id()));
        fs::create_dir(&folder).ok()?;
        let group = TestGroup { folder, child: None };
        fs::write(group.folder.join(place.version.limit_file()), limit.to_string()).ok()?;
        Some(group)
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

#[test]
fn a_groups_limit_leaves_what_its_files_take_up() {
    const LIMIT: u64 = 256 * MIB;
    let Some(mut group) = TestGroup::make(LIMIT) else {
        garden_testing::skip("no control group can be made here");
        return;
    };
    // Reads 60 MiB of file (reclaimable), then holds 30 MiB in a variable (not reclaimable).
    let file = std::env::temp_dir().join(format!("garden-probe-group-{}", std::process::id()));
    let script = format!(
        "read -r _; head -c 62914560 /dev/zero > {0}; echo read; read -r _; \
         text=$(head -c 31457280 /dev/zero | tr '\\0' x); echo held; read -r _",
        file.display()
    );
    let mut shell = Command::new("bash");
    let Ok(mut child) = shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        garden_testing::missing("bash");
        return;
    };
    let (pid, mut input) = (child.id(), child.stdin.take().unwrap());
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    group.child = Some(child);
    if fs::write(group.folder.join("cgroup.procs"), pid.to_string()).is_err() {
        garden_testing::skip("no process can be put into a control group here");
        return;
    }
    let mut surroundings = MachineProbe::of(pid);
    let first = surroundings.look();
    assert_eq!(first.group_limit, Some(LIMIT));
    let mut go = |answer: &str| {
        input.write_all(b"\n").unwrap();
        assert_eq!(output.next().unwrap().unwrap(), answer);
        surroundings.look()
    };
    let after_file = go("read");
    let after_memory = go("held");
    fs::remove_file(&file).unwrap();
    let room = |around: &MachineMemory| around.headroom.unwrap();
    let used = |around: &MachineMemory| around.group_used.unwrap();
    let story = format!("{first:?}\n{after_file:?}\n{after_memory:?}");
    assert!(room(&first) <= LIMIT && room(&first) > LIMIT - 20 * MIB, "{story}");
    assert!(used(&after_file) > used(&first) + 50 * MIB, "{story}");
    assert!(room(&after_file) + 10 * MIB > room(&first), "{story}");
    assert!(room(&after_memory) + 25 * MIB < room(&after_file), "{story}");
}
