//! How much memory one page fault can bring: a page, or a huge one.
//!
//! Huge pages are counted for the whole machine, when a fault allocates one and when the kernel collapses small pages into
//! one. So between two looks all processes together got at most a page for each of their faults, plus the counted huge
//! pages, and no process more huge pages by faults than it had faults. Where huge pages are not counted, each fault may
//! have brought one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use garden_memory::KIB;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// Huge pages made by any process of the machine, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HugePages {
    /// By faults.
    pub faulted: u64,
    /// By the kernel, out of small pages.
    pub collapsed: u64,
    /// How much larger a huge page is than what a fault brings otherwise.
    pub times: u64,
}

impl HugePages {
    /// The most that processes got of them whose faults brought `faulted` bytes otherwise.
    pub fn most_for(&self, faulted: u64) -> u64 {
        self.faulted.min(faulted.saturating_mul(self.times)).saturating_add(self.collapsed)
    }

    /// Adds those made since.
    pub fn add(&mut self, since: HugePages) {
        self.faulted = self.faulted.saturating_add(since.faulted);
        self.collapsed = self.collapsed.saturating_add(since.collapsed);
        self.times = since.times;
    }
}

/// Huge pages made since boot, by faults and by collapsing small ones.
type Counts = (u64, u64);

/// The most that page faults can bring on this machine.
#[derive(Debug)]
pub struct Faults {
    /// The most that one fault brings, apart from counted huge pages.
    page: u64,
    huge_page: u64,
    vmstat: Option<File>,
    counted: Option<Counts>,
    buffer: Vec<u8>,
}

impl Faults {
    /// Reads the page sizes of this machine.
    pub fn new() -> Faults {
        let page = rustix::param::page_size() as u64;
        let huge_page = number_in(&Path::new(FOLDER).join("hpage_pmd_size")).unwrap_or(0);
        let vmstat = File::open("/proc/vmstat").ok().filter(|_| huge_page > 0);
        let mut faults = Faults { page, huge_page, vmstat, counted: None, buffer: vec![0; 16384] };
        faults.counted = faults.count();
        let is_counted = huge_page == 0 || faults.counted.is_some();
        faults.page = page.max(if is_counted { largest_uncounted(huge_page) } else { huge_page });
        faults
    }

    /// The most bytes that `faults` faults can have brought, apart from counted huge pages.
    pub fn bytes(&self, faults: u64) -> u64 {
        faults.saturating_mul(self.page)
    }

    /// The huge pages made since the last look.
    pub fn look(&mut self) -> HugePages {
        let (before, now) = (self.counted, self.count());
        self.counted = now.or(before);
        let bytes = |of: fn(Counts) -> u64| {
            let pages = now.zip(before).map_or(0, |(now, before)| of(now).saturating_sub(of(before)));
            pages.saturating_mul(self.huge_page)
        };
        HugePages {
            faulted: bytes(|counts| counts.0),
            collapsed: bytes(|counts| counts.1),
            times: self.huge_page.div_ceil(self.page),
        }
    }

    fn count(&mut self) -> Option<Counts> {
        let vmstat = self.vmstat.as_ref()?;
        let mut length = 0;
        // The kernel returns a page of text at a time, and each one costs as much as all of them.
        loop {
            match vmstat.read_at(&mut self.buffer[length..], length as u64).ok()? {
                0 => return None,
                more => length += more,
            }
            if let Some(count) = std::str::from_utf8(&self.buffer[..length]).ok().and_then(huge_pages) {
                return Some(count);
            }
        }
    }
}

/// Huge pages of anonymous memory made since boot.
fn huge_pages(vmstat: &str) -> Option<Counts> {
    let of = |name: &str| vmstat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some((of("thp_fault_alloc ")?, of("thp_collapse_alloc ")?))
}

/// The largest page size below a huge page that faults may bring; such sizes are enabled one by one, and rarely are.
fn largest_uncounted(huge_page: u64) -> u64 {
    let Ok(entries) = fs::read_dir(FOLDER) else { return 0 };
    let size_of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        // Sizes for shared memory only are not enabled here.
        let is_on = fs::read_to_string(entry.path().join("enabled")).is_ok_and(|text| !text.contains("[never]"));
        Some(kib * KIB).filter(|&size| size < huge_page && is_on)
    };
    entries.filter_map(|entry| size_of(entry.ok()?)).max().unwrap_or(0)
}

fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_pages_are_counted_by_faults_and_collapses() {
        let text =
            "pgfault 12\nthp_fault_alloc 3\nthp_fault_fallback 9\nthp_collapse_alloc 4\nthp_collapse_alloc_failed 8\n";
        assert_eq!(huge_pages(text), Some((3, 4)));
        assert_eq!(huge_pages("pgfault 12\n"), None);
    }

    #[test]
    fn a_fault_brings_a_page_or_more() {
        let mut faults = Faults::new();
        assert!(faults.bytes(1) >= 4096, "{faults:?}");
        assert!(faults.look().most_for(u64::MAX) < 1 << 50);
    }

    #[test]
    fn who_has_no_faults_gets_no_huge_pages_by_them() {
        let huge = HugePages { faulted: 100, collapsed: 7, times: 4 };
        assert_eq!((huge.most_for(0), huge.most_for(5), huge.most_for(1000)), (7, 27, 107));
    }
}
