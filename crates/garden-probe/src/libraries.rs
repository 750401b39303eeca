//! The libraries loaded by the processes of a tree, by the names of the files whose code they have mapped.
//!
//! Listing a process's mappings takes milliseconds if there are thousands. The size of its code is among the counters that
//! are read anyway, so the list is read only when that size changes, for one process a sample, and not for a fork whose
//! origin was read in the same state.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::sync::Arc;
use std::time::Duration;

use garden_memory::Libraries;

use crate::time_budget::{Stopwatch, TimeBudget};

/// Share of the time that may be spent on listing mappings: one in a thousand.
const BUDGET: f64 = 0.001;
/// Programs load most libraries at the start, in several goes: this much time is saved up for that, to be spent as `BURST` of the time.
const SAVINGS: Duration = Duration::from_millis(30);
const BURST: f64 = 0.05;
/// A process has no code for a moment during `exec`; without code in this many samples in a row, its kernel does not report it.
const CODELESS: u32 = 3;
/// Longer names are shortened.
const LONGEST_NAME: usize = 64;

/// A process, and the state of its code.
#[derive(Clone, Copy, Debug)]
pub struct Coded {
    pub pid: u32,
    pub started: u64,
    /// See `Identity::image`: forks have the same.
    pub image: u64,
    /// Bytes of mapped code; zero if the kernel does not report them.
    pub code: u64,
}

/// Follows the libraries loaded by the processes of a tree.
#[derive(Debug)]
pub struct Loaded {
    libraries: Arc<Libraries>,
    /// Names seen while some processes are still unread.
    seen: Vec<String>,
    /// The state in which a process was read, by process id and start time.
    read: BTreeMap<(u32, u64), (u64, u64)>,
    /// The number of consecutive samples in which a process had no code.
    codeless: BTreeMap<(u32, u64), u32>,
    pace: TimeBudget,
}

impl Loaded {
    pub fn new() -> Loaded {
        Loaded {
            libraries: Arc::default(),
            seen: Vec::new(),
            read: BTreeMap::new(),
            codeless: BTreeMap::new(),
            pace: TimeBudget::new(BUDGET).with_savings(SAVINGS, BURST),
        }
    }

    /// Everything loaded so far, as of the last time at which all processes had been read.
    pub fn libraries(&self) -> &Arc<Libraries> {
        &self.libraries
    }

    /// Reads one of the processes whose code has changed since they were last read.
    pub fn look(&mut self, present: &[Coded]) {
        if *self.libraries == Libraries::Incomplete {
            return;
        }
        let before = std::mem::take(&mut self.codeless);
        for process in present.iter().filter(|process| process.code == 0) {
            let key = (process.pid, process.started);
            self.codeless.insert(key, 1 + before.get(&key).copied().unwrap_or(0));
        }
        if self.codeless.values().any(|samples| *samples >= CODELESS) {
            self.libraries = Arc::new(Libraries::Incomplete);
        }
        if !self.codeless.is_empty() {
            return;
        }
        self.read.retain(|known, _| present.iter().any(|process| (process.pid, process.started) == *known));
        if let Some(next) = self.unread(present).filter(|_| self.pace.is_due()) {
            let begin = Stopwatch::start();
            match mapped_code(next.pid) {
                Ok(names) => {
                    self.read.insert((next.pid, next.started), (next.image, next.code));
                    self.seen.extend(names);
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    self.libraries = Arc::new(Libraries::Incomplete);
                    return;
                }
                // It has exited.
                Err(_) => {}
            }
            self.pace.computed(&begin);
        }
        if !self.seen.is_empty() && self.unread(present).is_none() {
            Arc::make_mut(&mut self.libraries).add(self.seen.drain(..));
        }
    }

    /// A process whose code differs from all that were read.
    fn unread(&self, present: &[Coded]) -> Option<Coded> {
        let is_read = |process: &Coded| self.read.values().any(|state| *state == (process.image, process.code));
        present.iter().find(|process| !is_read(process)).copied()
    }
}

/// The names of the files whose code a process has mapped.
fn mapped_code(pid: u32) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut line = Vec::new();
    let mut lines = BufReader::new(File::open(format!("/proc/{pid}/maps"))?);
    while lines.read_until(b'\n', &mut line)? > 0 {
        if let Some(path) = code_path(&String::from_utf8_lossy(&line)) {
            names_of(path, &mut names);
        }
        line.clear();
    }
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// The file of a line of `/proc/PID/maps`, if it is mapped as code.
fn code_path(line: &str) -> Option<&str> {
    let permissions = line.split(' ').nth(1)?;
    let path = &line[line.find('/')?..];
    let path = path.trim_end_matches('\n').trim_end_matches(" (deleted)");
    permissions.contains('x').then_some(path)
}

/// The name of a file with code: its Python package, its shared library without the version, or its program.
fn names_of(path: &str, names: &mut Vec<String>) {
    let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
    let packages = ["/site-packages/", "/dist-packages/"];
    let package = packages.iter().find_map(|packages| path.split(packages).last().filter(|inside| *inside != path));
    let package = package.and_then(|inside| inside.split_once('/')).map(|(package, _)| package);
    let library = file.strip_suffix(".so").or_else(|| Some(file.split_once(".so.")?.0));
    let stem = library.unwrap_or(file);
    match (library.is_some() && !stem.starts_with("lib"), package) {
        // A Python module: its own name says little, its package's name everything.
        (true, Some(package)) => names.push(shortened(package)),
        (true, None) => {
            let module = stem.split('.').next().unwrap_or(stem);
            names.extend([folder.rsplit('/').next().unwrap_or(folder), module].map(shortened));
        }
        (false, package) => names.extend(package.into_iter().chain([stem]).map(shortened)),
    }
}

fn shortened(name: &str) -> String {
    name.chars().take(LONGEST_NAME).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, expected: &[&str]) {
        let mut names = Vec::new();
        names_of(path, &mut names);
        assert_eq!(names, expected, "{path}");
    }

    #[test]
    fn files_are_known_by_package_library_or_program() {
        check("/usr/bin/python3.12", &["python3.12"]);
        check("/usr/lib/x86_64-linux-gnu/libc.so.6", &["libc"]);
        check("/v/lib/python3.12/site-packages/PIL/_imaging.cpython-312-x86_64-linux-gnu.so", &["PIL"]);
        check(
            "/v/lib/python3.12/site-packages/pillow.libs/libjpeg-77ae51ab.so.62.4.0",
            &["pillow.libs", "libjpeg-77ae51ab"],
        );
        check("/v/site-packages/nvidia/cudnn/lib/libcudnn.so.9", &["nvidia", "libcudnn"]);
        check("/v/site-packages/_cffi_backend.cpython-312.so", &["site-packages", "_cffi_backend"]);
        check("/usr/lib/python3.12/lib-dynload/_json.cpython-312.so", &["lib-dynload", "_json"]);
        check("/usr/lib/ld-linux-x86-64.so.2", &["lib", "ld-linux-x86-64"]);
        check("/home/me/my.solver", &["my.solver"]);
    }

    #[test]
    fn only_code_counts() {
        let line = "7f2d-7f2e r-xp 00002000 fe:00 247030                     /usr/lib/lib a.so (deleted)\n";
        assert_eq!(code_path(line), Some("/usr/lib/lib a.so"));
        assert_eq!(code_path(&line.replace("r-xp", "r--p")), None);
        assert_eq!(code_path("7ffd-7ffe r-xp 00000000 00:00 0                  [vdso]\n"), None);
    }

    #[test]
    fn what_a_fork_has_is_known_from_its_origin_and_the_rest_is_read_one_by_one() {
        let mut loaded = Loaded::new();
        let me = Coded { pid: std::process::id(), started: 1, image: 7, code: 100 };
        let fork = Coded { pid: u32::MAX, ..me };
        let stranger = Coded { image: 8, ..me };
        loaded.look(&[me, fork]);
        let Libraries::Known(names) = loaded.libraries().as_ref() else { panic!("{loaded:?}") };
        assert!(names.contains("libc"), "{names:?}");
        loaded.look(&[me, fork, stranger]);
        assert_eq!(loaded.read.len(), 1, "it is not due yet");
        // Without code for too few samples in a row.
        loaded.look(&[me, Coded { code: 0, ..fork }]);
        loaded.look(&[me, Coded { code: 0, ..fork }]);
        loaded.look(&[me, Coded { code: 0, pid: 1, ..fork }]);
        assert_ne!(**loaded.libraries(), Libraries::Incomplete);
        (0..3).for_each(|_| loaded.look(&[Coded { code: 0, ..me }]));
        assert_eq!(**loaded.libraries(), Libraries::Incomplete);
    }
}
