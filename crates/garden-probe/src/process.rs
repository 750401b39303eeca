//! One process: its identity, its memory, and how its pages are shared.
//!
//! `/proc/PID/status` is kept open and read again from its start. That is cheaper than opening it each time, and safe
//! against reuse of process ids: the open file belongs to the process it was opened for, and reading it fails once that
//! process has exited.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use garden_memory::KIB;

/// The identity of a process; the start time tells it from a later one with the same id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Process id.
    pub pid: u32,
    /// Parent's process id when it was found.
    pub parent: u32,
    /// Session id.
    pub session: u32,
    /// Start time in clock ticks since boot.
    pub started: u64,
    /// The kernel's short name of it.
    pub name: String,
    /// The command line, words joined by spaces; empty for kernel threads and zombies.
    pub command: String,
    /// Start of the stack: a random address that forks keep and `exec` changes; zero if we may not read it.
    pub image: u64,
}

impl Identity {
    /// Identifies a process; `None` if there is none with this id.
    pub fn of(pid: u32) -> Option<Identity> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut identity = Stat::parse(&stat)?.identity()?;
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let text = String::from_utf8_lossy(&words);
        identity.command = text.trim_end_matches('\0').replace('\0', " ");
        Some(identity)
    }

    /// Whether both run the same program image, so that one is a fork of the other or both are of a common origin.
    ///
    /// The command line alone does not suffice: some programs overwrite it with a title.
    pub fn is_fork_of(&self, other: &Identity) -> bool {
        match (self.image, other.image) {
            (0, _) | (_, 0) => !self.command.is_empty() && self.command == other.command,
            (ours, theirs) => ours == theirs,
        }
    }
}

/// `/proc/PID/stat`, split: the name is in brackets and may itself contain brackets and spaces.
pub(crate) struct Stat<'a> {
    pid: &'a str,
    name: &'a str,
    /// The fields after the name, beginning with the state.
    fields: &'a str,
}

impl Stat<'_> {
    pub(crate) fn parse(text: &str) -> Option<Stat<'_>> {
        let (pid, rest) = text.split_once(" (")?;
        let (name, fields) = rest.rsplit_once(") ")?;
        Some(Stat { pid, name, fields })
    }

    fn number(&self, index: usize) -> Option<u64> {
        self.fields.split(' ').nth(index)?.trim_end().parse().ok()
    }

    /// Whether it may be in the middle of a fork: it runs, waits for a processor, or is in an uninterruptible sleep.
    pub(crate) fn may_fork(&self) -> bool {
        self.fields.starts_with(['R', 'D'])
    }

    /// Whether it has ended and given its memory back.
    fn is_zombie(&self) -> bool {
        self.fields.starts_with(['Z', 'X'])
    }

    /// CPU time in clock ticks.
    pub(crate) fn ticks(&self) -> Option<u64> {
        Some(self.number(11)? + self.number(12)?)
    }

    /// Page faults of the process, and of its ended children; major and minor.
    fn faults(&self) -> Option<(u64, u64)> {
        let mut counts = self.fields.split(' ').skip(7).map(|count| count.parse::<u64>().ok());
        let mut next = || counts.next().flatten();
        let (minor, minor_of_children, major, major_of_children) = (next()?, next()?, next()?, next()?);
        Some((minor + major, minor_of_children + major_of_children))
    }

    fn identity(&self) -> Option<Identity> {
        let id = |index: usize| self.number(index).and_then(|n| u32::try_from(n).ok());
        Some(Identity {
            pid: self.pid.trim().parse().ok()?,
            parent: id(1)?,
            session: id(3)?,
            started: self.number(19)?,
            name: self.name.to_string(),
            command: String::new(),
            image: self.number(25)?,
        })
    }
}

/// What our own process holds, read often: two numbers of a short file.
#[derive(Debug)]
pub struct OwnMemory {
    statm: File,
    page_bytes: u64,
}

impl OwnMemory {
    /// Begins to read it.
    pub fn open() -> io::Result<OwnMemory> {
        Ok(OwnMemory { statm: File::open("/proc/self/statm")?, page_bytes: rustix::param::page_size() as u64 })
    }

    /// Resident anonymous memory, in bytes; the kernel may be some hundred KB off while threads come and go.
    pub fn anonymous(&self) -> Option<u64> {
        let mut buffer = [0; 128];
        let length = self.statm.read_at(&mut buffer, 0).ok()?;
        let mut pages = std::str::from_utf8(&buffer[..length]).ok()?.split_whitespace().skip(1).map(str::parse::<u64>);
        let (resident, shared) = (pages.next()?.ok()?, pages.next()?.ok()?);
        Some(resident.saturating_sub(shared) * self.page_bytes)
    }
}

/// A process's memory counters, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident set size.
    pub rss: u64,
    /// Resident anonymous memory.
    pub anon: u64,
    /// Resident pages of mapped files.
    pub file: u64,
    /// Resident shared memory.
    pub shmem: u64,
    /// Swapped out.
    pub swap: u64,
    /// Peak resident set size.
    pub peak: u64,
    /// Mapped code of the program and its libraries.
    pub code: u64,
    /// Page faults so far, of all its threads: it gets no page without one, except by a fork.
    pub faults: u64,
    /// Page faults of the ended children it has waited for: the number changes when a child came and went.
    pub faults_of_children: u64,
}

/// How a process's pages are shared, in bytes, by `smaps_rollup`, which walks all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Resident set size, counted page by page.
    pub rss: u64,
    /// Of that, anonymous memory.
    pub anon: u64,
    /// PSS: each page divided by the number of processes that map it.
    pub pss: u64,
    /// Of that, anonymous memory.
    pub pss_anon: u64,
    /// Of that, mapped files.
    pub pss_file: u64,
    /// Of that, shared memory.
    pub pss_shmem: u64,
    /// Pages that only this process maps.
    pub private: u64,
    /// Pages that others map too.
    pub shared: u64,
}

/// For this long after it was found, a process may still `exec` the program it was started for.
const YOUNG: Duration = Duration::from_secs(2);

/// For this long after a process was last seen to catch a signal it counts as catching it: one that ends on a signal gives its handlers up first.
const HANDLED: Duration = Duration::from_secs(10);

/// A process under watch.
#[derive(Debug)]
pub struct Process {
    /// Its identity.
    pub identity: Identity,
    status: File,
    stat: File,
    /// Reused for each reading: a status file has about 1.5 KB.
    buffer: Vec<u8>,
    found: Instant,
    peak: u64,
    execs: u32,
    /// Signals that it catches, as bits, and when it last caught all of them.
    caught: (u64, Instant),
}

impl Process {
    /// Begins to watch a process.
    pub fn open(identity: Identity) -> io::Result<Process> {
        let open = |name: &str| File::open(format!("/proc/{}/{name}", identity.pid));
        let (status, stat) = (open("status")?, open("stat")?);
        let (found, buffer) = (Instant::now(), vec![0; 4096]);
        Ok(Process { identity, status, stat, buffer, found, peak: 0, execs: 0, caught: (0, found) })
    }

    /// Reads the counters; an error means that the process has exited, `None` that it is a zombie without memory.
    pub fn memory(&mut self) -> io::Result<Option<Memory>> {
        let length = self.status.read_at(&mut self.buffer, 0)?;
        let status = &self.buffer[..length];
        let Some(mut memory) = parse_status(status) else { return Ok(None) };
        let caught = signals(status, b"SigCgt:");
        let has_new_name = field(status, b"Name:").is_some_and(|name| name != self.identity.name);
        let length = self.stat.read_at(&mut self.buffer, 0)?;
        let mut has_new_image = false;
        if let Some(stat) = std::str::from_utf8(&self.buffer[..length]).ok().and_then(Stat::parse) {
            (memory.faults, memory.faults_of_children) = stat.faults().unwrap_or_default();
            has_new_image = stat.number(25).is_some_and(|image| image != self.identity.image);
        }
        // A process caught between `fork` and `exec` looks like its parent, and the new program may have the same name. `exec`
        // resets the peak; but a young process is identified again in any case, in case it grew quickly.
        if has_new_name || has_new_image || memory.peak < self.peak || self.found.elapsed() < YOUNG {
            self.ask_again();
        }
        self.peak = memory.peak;
        self.remember(caught);
        Ok(Some(memory))
    }

    /// Whether it is ending: it has no memory of its own any more, but the kernel is still giving the pages back.
    pub(crate) fn is_ending(&mut self) -> bool {
        let length = self.stat.read_at(&mut self.buffer, 0).unwrap_or(0);
        let stat = std::str::from_utf8(&self.buffer[..length]).ok().and_then(Stat::parse);
        stat.is_some_and(|stat| !stat.is_zombie())
    }

    fn remember(&mut self, caught: u64) {
        let (before, when) = self.caught;
        let is_less = before & !caught != 0;
        self.caught =
            if is_less && when.elapsed() < HANDLED { (before | caught, when) } else { (caught, Instant::now()) };
    }

    /// Signals that it catches, or did until a few seconds ago, as bits; known from the last look at its memory.
    pub(crate) fn caught(&self) -> u64 {
        self.caught.0
    }

    /// The number of `exec` calls seen.
    pub(crate) fn execs(&self) -> u32 {
        self.execs
    }

    /// Identifies it again: a shell that runs a single command becomes that command.
    pub(crate) fn ask_again(&mut self) {
        let Some(now) = Identity::of(self.identity.pid).filter(|now| now.started == self.identity.started) else {
            return;
        };
        if !now.is_fork_of(&self.identity) {
            self.execs += 1;
            // Handlers end with the program that set them.
            self.caught = (0, self.found);
        }
        // Once its parent has exited, another process adopts it.
        self.identity = Identity { parent: self.identity.parent, ..now };
    }

    /// Whether it catches a signal, rather than ignoring it or being killed by it.
    pub fn catches(&self, signal: i32) -> bool {
        self.has_signal(b"SigCgt:", signal)
    }

    /// Whether it ignores a signal.
    pub fn ignores(&self, signal: i32) -> bool {
        self.has_signal(b"SigIgn:", signal)
    }

    fn has_signal(&self, mask: &[u8], signal: i32) -> bool {
        let mut buffer = [0; 4096];
        let status = self.status.read_at(&mut buffer, 0).map_or(&[][..], |length| &buffer[..length]);
        has_bit(signals(status, mask), signal)
    }

    /// Walks all pages; takes about 10 ms per GiB and holds the process's mmap lock meanwhile.
    pub fn shares(&self) -> io::Result<Shares> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.identity.pid))?;
        parse_rollup(&text).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn field<'a>(status: &'a [u8], name: &[u8]) -> Option<&'a str> {
    let line = status.split(|&byte| byte == b'\n').find(|line| line.starts_with(name))?;
    std::str::from_utf8(&line[name.len()..]).ok().map(str::trim)
}

/// A set of signals of `/proc/PID/status`, as bits.
fn signals(status: &[u8], name: &[u8]) -> u64 {
    field(status, name).and_then(|digits| u64::from_str_radix(digits, 16).ok()).unwrap_or(0)
}

/// Whether a set of signals has this one.
pub(crate) fn has_bit(signals: u64, signal: i32) -> bool {
    let bit = u32::try_from(signal - 1).ok().and_then(|shift| 1_u64.checked_shl(shift));
    bit.is_some_and(|bit| signals & bit != 0)
}

fn kib(status: &[u8], name: &[u8]) -> Option<u64> {
    field(status, name)?.strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(KIB)
}

/// Parses `/proc/PID/status` in one pass, since this is done for every process and sample; a zombie has no memory lines.
fn parse_status(status: &[u8]) -> Option<Memory> {
    let mut memory = Memory::default();
    let mut has_memory = false;
    for line in status.split(|&byte| byte == b'\n') {
        let place = match line {
            [b'V', b'm', b'R', b'S', b'S', b':', ..] => &mut memory.rss,
            [b'V', b'm', b'H', b'W', b'M', b':', ..] => &mut memory.peak,
            [b'V', b'm', b'E', b'x', b'e', b':', ..] | [b'V', b'm', b'L', b'i', b'b', b':', ..] => &mut memory.code,
            [b'V', b'm', b'S', b'w', b'a', b'p', b':', ..] => &mut memory.swap,
            [b'R', b's', b's', b'A', b'n', b'o', b'n', b':', ..] => &mut memory.anon,
            [b'R', b's', b's', b'F', b'i', b'l', b'e', b':', ..] => &mut memory.file,
            [b'R', b's', b's', b'S', b'h', b'm', b'e', b'm', b':', ..] => &mut memory.shmem,
            // The lines after these are about signals and threads.
            [b'T', b'h', b'r', b'e', b'a', b'd', b's', b':', ..] => break,
            _ => continue,
        };
        let digits = line.iter().filter(|byte| byte.is_ascii_digit());
        let number = digits.fold(0_u64, |sum, digit| sum.saturating_mul(10) + u64::from(digit - b'0'));
        *place = place.saturating_add(number.saturating_mul(KIB));
        has_memory |= line.starts_with(b"VmRSS:");
    }
    has_memory.then_some(memory)
}

/// Parses `smaps_rollup`; a process that has just ended has no numbers.
fn parse_rollup(text: &str) -> Option<Shares> {
    let of = |name: &[u8]| kib(text.as_bytes(), name).unwrap_or(0);
    Some(Shares {
        rss: kib(text.as_bytes(), b"Rss:")?,
        anon: of(b"Anonymous:"),
        pss: of(b"Pss:"),
        pss_anon: of(b"Pss_Anon:"),
        pss_file: of(b"Pss_File:"),
        pss_shmem: of(b"Pss_Shmem:"),
        private: of(b"Private_Clean:") + of(b"Private_Dirty:"),
        shared: of(b"Shared_Clean:") + of(b"Shared_Dirty:"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_brackets_and_spaces_do_not_confuse() {
        let text = "4711 (tmux: (a) b) S 1 4711 4712 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3 4 5 140000 7";
        let stat = Stat::parse(text).unwrap();
        let found = stat.identity().unwrap();
        assert_eq!((found.pid, found.name.as_str(), found.parent), (4711, "tmux: (a) b", 1));
        assert_eq!((found.session, found.started, found.image), (4712, 987654, 140000));
        assert_eq!(stat.faults(), Some((1 + 3, 2 + 4)));
        assert_eq!((stat.may_fork(), stat.is_zombie(), stat.ticks()), (false, false, Some(5 + 6)));
        assert!(Stat::parse("4711 (torn").is_none());
    }

    #[test]
    fn a_zombie_has_no_memory() {
        assert_eq!(parse_status(b"Name:\tpython3\nState:\tZ (zombie)\n"), None);
        let found = parse_status(b"VmHWM:\t 12 kB\nVmRSS:\t 10 kB\nRssAnon:\t 6 kB\nRssFile:\t 4 kB\n").unwrap();
        assert_eq!((found.peak, found.rss, found.anon, found.file), (12288, 10240, 6144, 4096));
    }

    #[test]
    fn our_own_memory_adds_up() {
        let mut me = Process::open(Identity::of(std::process::id()).unwrap()).unwrap();
        let memory = me.memory().unwrap().unwrap();
        assert!(memory.rss > 0);
        assert_eq!(memory.rss, memory.anon + memory.file + memory.shmem);
        let shares = me.shares().unwrap();
        assert!(shares.pss > 0 && shares.pss <= memory.rss + (8 << 20), "{shares:?} {memory:?}");
    }

    #[test]
    fn signals_that_a_program_catches_are_known() {
        let me = Process::open(Identity::of(std::process::id()).unwrap()).unwrap();
        // The standard library catches SIGSEGV to report stack overflows; SIGKILL cannot be caught.
        assert!(me.catches(11) && !me.catches(9));
        assert!(!me.catches(0) && !me.catches(-1) && !me.catches(65));
    }

    #[test]
    fn a_fork_is_known_by_its_image_and_else_by_its_command_line() {
        let who = |command: &str, image: u64| Identity { command: command.into(), image, ..Identity::of(1).unwrap() };
        assert!(who("train.py", 7).is_fork_of(&who("train.py: worker 1", 7)));
        assert!(!who("train.py", 7).is_fork_of(&who("train.py", 8)));
        assert!(who("train.py", 0).is_fork_of(&who("train.py", 8)));
        assert!(!who("", 0).is_fork_of(&who("", 0)));
    }
}
