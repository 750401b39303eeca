//! A hard fence around a program: a control group, or a systemd scope, with the limit as its own.
//!
//! If the guard's plan fails, the kernel then ends this program and nothing else on the machine. A limit on address space
//! (`RLIMIT_AS`) would be no fence: CUDA reserves address ranges far larger than the memory it uses.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use garden_memory::Bytes;
use garden_probe::memory_groups;

/// A fence that was built.
#[derive(Debug)]
pub enum Fence {
    /// A control group of our own.
    Group(PathBuf),
    /// A systemd scope: these words are put before the command.
    Scope(Vec<OsString>),
}

impl Fence {
    /// Builds a fence of this size; the error says why none could be built.
    pub fn build(limit: Bytes) -> Result<Fence, String> {
        let group = build_group(limit);
        group.or_else(|why| build_scope(limit).map_err(|scope| format!("{why}; {scope}")))
    }

    /// What it is, in words.
    pub fn words(&self) -> String {
        match self {
            Fence::Group(folder) => format!("control group {}", folder.display()),
            Fence::Scope(_) => "a systemd scope".into(),
        }
    }

    /// The list of processes that the program must add itself to.
    pub fn entrance(&self) -> io::Result<Option<File>> {
        match self {
            Fence::Group(folder) => File::options().write(true).open(folder.join("cgroup.procs")).map(Some),
            Fence::Scope(_) => Ok(None),
        }
    }

    /// The words to put before the command.
    pub fn words_before(&self) -> &[OsString] {
        match self {
            Fence::Group(_) => &[],
            Fence::Scope(words) => words,
        }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Fence::Group(folder) = self {
            // It can only be removed once it is empty; an empty group left behind costs nothing.
            drop(fs::remove_dir(folder));
        }
    }
}

/// A control group beside or beneath our own, wherever we may make one and memory is controlled.
fn build_group(limit: Bytes) -> Result<Fence, String> {
    let mut why = "no memory control group was found".to_string();
    for group in memory_groups() {
        // In version 2 a group with processes of its own cannot have controlled groups beneath it, so ours stands beside it.
        let beside = group.is_version_2.then(|| group.folder.parent()).flatten();
        let place = beside.unwrap_or(&group.folder);
        match make_group(place, group.is_version_2, limit) {
            Ok(folder) => return Ok(Fence::Group(folder)),
            Err(error) => why = format!("cannot create a control group in {}: {error}", place.display()),
        }
    }
    Err(why)
}

fn make_group(place: &Path, is_version_2: bool, limit: Bytes) -> io::Result<PathBuf> {
    let folder = place.join(format!("model-garden-{}", std::process::id()));
    fs::create_dir(&folder)?;
    let file = if is_version_2 { "memory.max" } else { "memory.limit_in_bytes" };
    // A new file must not be made: where memory is not controlled there is none.
    let set = |file: &str, value: String| {
        File::options()
            .write(true)
            .open(folder.join(file))
            .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()))
    };
    if let Err(error) = set(file, limit.0.to_string()) {
        drop(fs::remove_dir(&folder));
        return Err(error);
    }
    if is_version_2 {
        // Without swap the limit is the limit; where swap is not controlled there is nothing to set.
        drop(set("memory.swap.max", "0".into()));
        drop(set("memory.oom.group", "1".into()));
    }
    Ok(folder)
}

fn build_scope(limit: Bytes) -> Result<Fence, String> {
    let user: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["--user"] };
    let words: Vec<OsString> = ["systemd-run"]
        .iter()
        .chain(user)
        .chain(&["--scope", "--quiet", "--collect", "-p"])
        .map(OsString::from)
        .chain([format!("MemoryMax={}", limit.0).into(), "-p".into(), "MemorySwapMax=0".into(), "--".into()])
        .collect();
    let trial = Command::new(&words[0]).args(&words[1..]).arg("true").stdin(Stdio::null()).output();
    match trial {
        Ok(output) if output.status.success() => Ok(Fence::Scope(words)),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("systemd-run: {}", said.lines().next().unwrap_or("failed")))
        }
        Err(error) => Err(format!("systemd-run: {error}")),
    }
}
