//! Tests of the surroundings: the parsers on text, the rest on this machine and on a control group made for the test.

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
    let around = Surroundings::of(std::process::id()).look();
    assert!(around.available.is_some_and(|bytes| bytes > 0), "{around:?}");
    assert!(around.headroom.is_some_and(|bytes| bytes > 0), "{around:?}");
    // A process that is not there is taken to be where we are.
    assert!(Surroundings::of(u32::MAX).look().headroom.is_some());
}

#[test]
fn files_in_shared_memory_are_seen() {
    let Some(before) = shared_memory_used() else {
        eprintln!("skipped: /dev/shm is not in memory");
        return;
    };
    let path = format!("/dev/shm/garden-probe-{}", std::process::id());
    fs::write(&path, vec![1_u8; 16 << 20]).unwrap();
    let during = shared_memory_used().unwrap();
    fs::remove_file(&path).unwrap();
    assert!(during >= before + 15 * MIB, "{before} {during}");
}

/// A control group of the memory controller, below the one we are in, or one made under the mount; removed at the end.
struct TestGroup {
    folder: PathBuf,
    child: Option<Child>,
}

impl TestGroup {
    fn make(limit: u64) -> Option<TestGroup> {
        let place = groups::find(std::process::id()).into_iter().find(|place| !Group::all_of(place).is_empty())?;
        // A group of version 2 that holds processes cannot also hand its controllers down: go to the top.
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
        eprintln!("skipped: no control group can be made here");
        return;
    };
    // Reads 60 MiB of file (which the kernel can take back), then holds 60 MiB in the shell's variable (which it cannot).
    let file = std::env::temp_dir().join(format!("garden-probe-group-{}", std::process::id()));
    let script = format!(
        "read -r _; head -c 62914560 /dev/zero > {0}; echo read; read -r _; \
         text=$(head -c 31457280 /dev/zero | tr '\\0' x); echo held; read -r _",
        file.display()
    );
    let mut shell = Command::new("bash");
    let Ok(mut child) = shell.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
        eprintln!("skipped: no bash here");
        return;
    };
    let (pid, mut input) = (child.id(), child.stdin.take().unwrap());
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    group.child = Some(child);
    if fs::write(group.folder.join("cgroup.procs"), pid.to_string()).is_err() {
        eprintln!("skipped: no process can be put into a control group here");
        return;
    }
    let mut surroundings = Surroundings::of(pid);
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
    let room = |around: &Around| around.headroom.unwrap();
    let used = |around: &Around| around.group_used.unwrap();
    let story = format!("{first:?}\n{after_file:?}\n{after_memory:?}");
    assert!(room(&first) <= LIMIT && room(&first) > LIMIT - 20 * MIB, "{story}");
    assert!(used(&after_file) > used(&first) + 50 * MIB, "{story}");
    assert!(room(&after_file) + 10 * MIB > room(&first), "{story}");
    assert!(room(&after_memory) + 25 * MIB < room(&after_file), "{story}");
}
