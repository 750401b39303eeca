//! GPU memory from NVIDIA's management library (NVML), which comes with the driver and is opened at run time.
//!
//! A missing library, driver or GPU is normal. In a container the library may report the host's process ids; then only
//! the sum over all processes is known.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_uint, c_ulonglong, c_void};
use std::path::Path;

use libloading::Library;

const SUCCESS: c_int = 0;
/// The list of processes is longer than the buffer.
const INSUFFICIENT_SIZE: c_int = 7;
/// An amount that the driver does not report.
const NOT_AVAILABLE: c_ulonglong = c_ulonglong::MAX;
/// How often to ask for a list that may grow meanwhile.
const TRIES: u32 = 4;

/// The library's handle of one GPU.
#[repr(transparent)]
#[derive(Clone, Copy, Debug)]
struct Device(*mut c_void);

// SAFETY: the library is thread-safe, and only it dereferences the pointer.
unsafe impl Send for Device {}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MemoryInfo {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlProcessInfo_t` since its second version.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct ProcessInfo {
    pid: c_uint,
    used: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type NoArguments = unsafe extern "C" fn() -> c_int;
type GetCount = unsafe extern "C" fn(*mut c_uint) -> c_int;
type GetDevice = unsafe extern "C" fn(c_uint, *mut Device) -> c_int;
type GetMemory = unsafe extern "C" fn(Device, *mut MemoryInfo) -> c_int;
type GetProcesses = unsafe extern "C" fn(Device, *mut c_uint, *mut ProcessInfo) -> c_int;

/// The GPUs of this machine.
#[derive(Debug)]
pub struct Gpus {
    devices: Vec<Device>,
    get_memory: GetMemory,
    /// Drivers before 2020 lack it.
    get_processes: Option<GetProcesses>,
    shutdown: NoArguments,
    /// The functions above are in the library: it must stay loaded as long as they are used.
    _library: Library,
}

/// GPU memory at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuSample {
    /// Bytes in use on all GPUs, by any process.
    pub used: u64,
    /// Memory of all GPUs, in bytes.
    pub total: u64,
    /// Use of each process on all GPUs, by process id, in bytes; empty if unknown.
    pub by_process: Vec<(u32, u64)>,
}

impl Gpus {
    /// Opens the library and finds the GPUs; `None` where there is nothing to watch.
    pub fn open() -> Option<Gpus> {
        let names = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
        // SAFETY: NVIDIA's library may be loaded and unloaded at any time; its initialisers have no preconditions.
        let library = names.into_iter().find_map(|name| unsafe { Library::new(name) }.ok())?;
        // SAFETY: the types are those of the functions of these names and versions in `nvml.h`.
        let (initialize, shutdown, get_count, get_device, get_memory, get_processes) = unsafe {
            let get_processes = symbol::<GetProcesses>(&library, c"nvmlDeviceGetComputeRunningProcesses_v3");
            (
                symbol::<NoArguments>(&library, c"nvmlInit_v2")?,
                symbol::<NoArguments>(&library, c"nvmlShutdown")?,
                symbol::<GetCount>(&library, c"nvmlDeviceGetCount_v2")?,
                symbol::<GetDevice>(&library, c"nvmlDeviceGetHandleByIndex_v2")?,
                symbol::<GetMemory>(&library, c"nvmlDeviceGetMemoryInfo")?,
                get_processes.or_else(|| symbol(&library, c"nvmlDeviceGetComputeRunningProcesses_v2")),
            )
        };
        // SAFETY: it takes no arguments and may be called at any time.
        if unsafe { initialize() } != SUCCESS {
            return None;
        }
        // From here on, dropping this shuts the library down.
        let mut gpus = Gpus { devices: Vec::new(), get_memory, get_processes, shutdown, _library: library };
        let mut count = 0;
        // SAFETY: the library is initialised, and `count` outlives the call.
        if unsafe { get_count(&raw mut count) } != SUCCESS {
            return None;
        }
        for index in 0..count {
            let mut device = Device(std::ptr::null_mut());
            // SAFETY: as above. A GPU that we may not use is left out.
            if unsafe { get_device(index, &raw mut device) } == SUCCESS {
                gpus.devices.push(device);
            }
        }
        (!gpus.devices.is_empty()).then_some(gpus)
    }

    /// Reads all GPUs.
    pub fn look(&self) -> GpuSample {
        let memories: Vec<MemoryInfo> = self.devices.iter().filter_map(|&device| self.memory(device)).collect();
        let processes: Option<Vec<Vec<ProcessInfo>>> =
            self.devices.iter().map(|&device| self.processes(device)).collect();
        GpuSample {
            used: memories.iter().map(|memory| memory.used).sum(),
            total: memories.iter().map(|memory| memory.total).sum(),
            by_process: processes.map(|lists| by_process(&lists.concat())).unwrap_or_default(),
        }
    }

    fn memory(&self, device: Device) -> Option<MemoryInfo> {
        let mut memory = MemoryInfo::default();
        // SAFETY: the device is the library's own, and `memory` outlives the call.
        (unsafe { (self.get_memory)(device, &raw mut memory) } == SUCCESS).then_some(memory)
    }

    fn processes(&self, device: Device) -> Option<Vec<ProcessInfo>> {
        let get_processes = self.get_processes?;
        let mut list = vec![ProcessInfo::default(); 16];
        for _ in 0..TRIES {
            let mut count = c_uint::try_from(list.len()).ok()?;
            // SAFETY: the list holds `count` entries, and the library writes no more than that.
            let answer = unsafe { get_processes(device, &raw mut count, list.as_mut_ptr()) };
            let count = usize::try_from(count).ok()?;
            match answer {
                SUCCESS => {
                    list.truncate(count);
                    return Some(list);
                }
                // More may come before we ask again.
                INSUFFICIENT_SIZE => list.resize(count.max(list.len()) * 2, ProcessInfo::default()),
                _ => return None,
            }
        }
        None
    }
}

impl Drop for Gpus {
    fn drop(&mut self) {
        // SAFETY: the library was initialised once, and is not used after this.
        unsafe { (self.shutdown)() };
    }
}

/// A function of the library, if it has it.
///
/// # Safety
/// `T` must be the type of the function of that name, and must not be used after the library is unloaded.
unsafe fn symbol<T: Copy>(library: &Library, name: &CStr) -> Option<T> {
    // SAFETY: as promised by the caller.
    unsafe { library.get::<T>(name) }.ok().map(|symbol| *symbol)
}

/// Sums by process; empty if any amount is unknown or any process is outside our PID namespace.
fn by_process(entries: &[ProcessInfo]) -> Vec<(u32, u64)> {
    let is_known =
        |entry: &ProcessInfo| entry.used != NOT_AVAILABLE && Path::new(&format!("/proc/{}", entry.pid)).exists();
    if !entries.iter().all(is_known) {
        return Vec::new();
    }
    let mut sums = BTreeMap::new();
    for entry in entries {
        *sums.entry(entry.pid).or_insert(0) += entry.used;
    }
    sums.into_iter().collect()
}

#[cfg(test)]
#[path = "gpu_tests.rs"]
mod tests;
