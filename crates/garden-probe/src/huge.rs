//! How much memory one page fault can bring: a page, or a huge one.
//!
//! Huge pages are counted for the machine as a whole, when a fault makes one and when the kernel puts one together out of small
//! ones. So between two looks all processes together got at most a page for each of their faults and a huge page for each that was
//! counted. Where they are not counted, each fault may have brought one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use garden_memory::KIB;

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// What faults can bring on this machine.
#[derive(Debug)]
pub struct Faults {
    /// What one fault brings at most, counted huge pages apart.
    page: u64,
    huge_page: u64,
    vmstat: Option<File>,
    counted: Option<u64>,
    buffer: Vec<u8>,
}

impl Faults {
    /// Finds out what a fault can bring here.
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

    /// The memory that so many faults can have brought, huge pages that are counted apart.
    pub fn bytes(&self, faults: u64) -> u64 {
        faults.saturating_mul(self.page)
    }

    /// The memory that huge pages can have brought to anybody since the last look.
    pub fn look(&mut self) -> u64 {
        let (before, now) = (self.counted, self.count());
        self.counted = now.or(before);
        let pages = now.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        pages.saturating_mul(self.huge_page)
    }

    fn count(&mut self) -> Option<u64> {
        let vmstat = self.vmstat.as_ref()?;
        let mut length = 0;
        // The kernel gives a page of text at a time, and each one costs as much as all of them.
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

/// Huge pages of anonymous memory that were made since the machine was started.
fn huge_pages(vmstat: &str) -> Option<u64> {
    let of = |name: &str| vmstat.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    Some(of("thp_fault_alloc ")? + of("thp_collapse_alloc ")?)
}

/// The largest size below a huge page that faults may bring; such sizes are switched on one by one and rarely are.
fn largest_uncounted(huge_page: u64) -> u64 {
    let Ok(entries) = fs::read_dir(FOLDER) else { return 0 };
    let size_of = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        // Sizes that only shared memory can have are not switched on here.
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
        assert_eq!(huge_pages(text), Some(7));
        assert_eq!(huge_pages("pgfault 12\n"), None);
    }

    #[test]
    fn a_fault_brings_a_page_or_more() {
        let mut faults = Faults::new();
        assert!(faults.bytes(1) >= 4096, "{faults:?}");
        assert!(faults.look() < 1 << 50);
    }
}
