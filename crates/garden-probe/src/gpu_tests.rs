//! Tests of the GPU readings; those on a real GPU are skipped where there is none.

use garden_memory::MIB;

use super::*;

#[test]
fn entries_are_as_large_as_the_library_has_them() {
    assert_eq!((size_of::<ProcessInfo>(), size_of::<MemoryInfo>()), (24, 24));
}

#[test]
fn a_sampler_may_move_to_another_thread() {
    fn assert_sendable<T: Send>() {}
    assert_sendable::<crate::Sampler>();
}

#[test]
fn amounts_are_summed_by_process_or_not_told_at_all() {
    let me = std::process::id();
    let entry = |pid: u32, used: u64| ProcessInfo { pid, used, ..ProcessInfo::default() };
    assert_eq!(by_process(&[entry(me, 3), entry(1, 5), entry(me, 4)]), [(1, 5), (me, 7)]);
    // A process of the host, and an amount that the driver does not report.
    assert!(by_process(&[entry(me, 3), entry(u32::MAX, 5)]).is_empty());
    assert!(by_process(&[entry(me, NOT_AVAILABLE)]).is_empty());
}

/// GPU memory that this process holds, through the driver's own library.
struct Held {
    free: unsafe extern "C" fn(c_ulonglong) -> c_int,
    address: c_ulonglong,
    _library: Library,
}

impl Held {
    fn take(bytes: u64) -> Option<Held> {
        type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
        type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
        type Allocate = unsafe extern "C" fn(*mut c_ulonglong, usize) -> c_int;
        // SAFETY: the types are those of these functions in `cuda.h`, called in the order that it asks for.
        unsafe {
            let library = Library::new("libcuda.so.1").ok()?;
            let initialize = symbol::<unsafe extern "C" fn(c_uint) -> c_int>(&library, c"cuInit")?;
            let retain = symbol::<Retain>(&library, c"cuDevicePrimaryCtxRetain")?;
            let set_current = symbol::<SetCurrent>(&library, c"cuCtxSetCurrent")?;
            let allocate = symbol::<Allocate>(&library, c"cuMemAlloc_v2")?;
            let free = symbol(&library, c"cuMemFree_v2")?;
            let mut context = std::ptr::null_mut();
            let mut address = 0;
            let worked = initialize(0) == SUCCESS
                && retain(&raw mut context, 0) == SUCCESS
                && set_current(context) == SUCCESS
                && allocate(&raw mut address, usize::try_from(bytes).ok()?) == SUCCESS;
            worked.then_some(Held { free, address, _library: library })
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: the address was allocated above and is freed once.
        unsafe { (self.free)(self.address) };
    }
}

#[test]
fn memory_that_we_take_is_seen() {
    let Some(gpus) = Gpus::open() else {
        garden_testing::skip("no NVIDIA GPU here");
        return;
    };
    let before = gpus.look();
    assert!(before.total > 0 && before.used <= before.total, "{before:?}");
    let Some(held) = Held::take(512 * MIB) else {
        garden_testing::skip("GPU memory cannot be taken here");
        return;
    };
    let during = gpus.look();
    drop(held);
    assert!(during.used >= before.used + 512 * MIB, "{before:?} {during:?}");
    let ours = during.by_process.iter().find(|(pid, _)| *pid == std::process::id());
    assert!(during.by_process.is_empty() || ours.is_some_and(|(_, used)| *used >= 512 * MIB), "{during:?}");
}
