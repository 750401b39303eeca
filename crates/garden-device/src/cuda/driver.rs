//! The CUDA driver: one GPU, its memory, its streams, kernels.
//!
//! Some thirty functions of libcuda, declared here: a bindings crate would bring all of them and end the program if the library is missing.
//! Functions return the driver's error; the device latches it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use super::library::{Unavailable, functions, open};

/// An address in GPU memory.
pub(super) type Address = u64;

type Status = c_int;
type Handle = *mut c_void;

functions! {
    Functions {
        init = "cuInit" (c_uint) -> Status;
        driver_version = "cuDriverGetVersion" (*mut c_int) -> Status;
        device_count = "cuDeviceGetCount" (*mut c_int) -> Status;
        device_get = "cuDeviceGet" (*mut c_int, c_int) -> Status;
        device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int) -> Status;
        device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int) -> Status;
        context_retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int) -> Status;
        context_release = "cuDevicePrimaryCtxRelease_v2" (c_int) -> Status;
        context_set = "cuCtxSetCurrent" (Handle) -> Status;
        memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize) -> Status;
        allocate = "cuMemAlloc_v2" (*mut Address, usize) -> Status;
        free = "cuMemFree_v2" (Address) -> Status;
        allocate_host = "cuMemHostAlloc" (*mut *mut c_void, usize, c_uint) -> Status;
        free_host = "cuMemFreeHost" (*mut c_void) -> Status;
        copy_to = "cuMemcpyHtoDAsync_v2" (Address, *const c_void, usize, Handle) -> Status;
        copy_from = "cuMemcpyDtoHAsync_v2" (*mut c_void, Address, usize, Handle) -> Status;
        copy_rows = "cuMemcpy2DAsync_v2" (*const CopyOfRows, Handle) -> Status;
        copy_within = "cuMemcpyDtoDAsync_v2" (Address, Address, usize, Handle) -> Status;
        set_bytes = "cuMemsetD8Async" (Address, u8, usize, Handle) -> Status;
        stream_create = "cuStreamCreate" (*mut Handle, c_uint) -> Status;
        stream_destroy = "cuStreamDestroy_v2" (Handle) -> Status;
        stream_synchronize = "cuStreamSynchronize" (Handle) -> Status;
        stream_wait = "cuStreamWaitEvent" (Handle, Handle, c_uint) -> Status;
        capture_begin = "cuStreamBeginCapture_v2" (Handle, c_int) -> Status;
        capture_end = "cuStreamEndCapture" (Handle, *mut Handle) -> Status;
        graph_instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64) -> Status;
        graph_launch = "cuGraphLaunch" (Handle, Handle) -> Status;
        graph_destroy = "cuGraphDestroy" (Handle) -> Status;
        executable_destroy = "cuGraphExecDestroy" (Handle) -> Status;
        event_create = "cuEventCreate" (*mut Handle, c_uint) -> Status;
        event_destroy = "cuEventDestroy_v2" (Handle) -> Status;
        event_record = "cuEventRecord" (Handle, Handle) -> Status;
        event_synchronize = "cuEventSynchronize" (Handle) -> Status;
        event_elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle) -> Status;
        module_load = "cuModuleLoadData" (*mut Handle, *const c_void) -> Status;
        module_function = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char) -> Status;
        function_attribute = "cuFuncSetAttribute" (Handle, c_int, c_int) -> Status;
        launch = "cuLaunchKernel" (
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        ) -> Status;
        error_name = "cuGetErrorName" (Status, *mut *const c_char) -> Status;
        error_text = "cuGetErrorString" (Status, *mut *const c_char) -> Status;
    }
}

/// Offset and size of a kernel's parameter; drivers before CUDA 12.4 do not have it.
type ParameterInfo = unsafe extern "C" fn(Handle, usize, *mut usize, *mut usize) -> Status;

const OUT_OF_MEMORY: Status = 2;
const NO_DEVICE: Status = 100;
const ATTRIBUTE_MAJOR: c_int = 75;
const ATTRIBUTE_MINOR: c_int = 76;
const ATTRIBUTE_MULTIPROCESSORS: c_int = 16;
/// Maximum shared memory per block with opt-in.
const ATTRIBUTE_SHARED: c_int = 97;
const FUNCTION_SHARED: c_int = 8;
/// Captures only the given stream; other calls of the process are unaffected.
const CAPTURE_RELAXED: c_int = 2;
/// A stream that does not synchronise with the default stream.
const NON_BLOCKING: c_uint = 1;

/// Properties of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    /// Its name.
    pub name: String,
    /// Compute capability, such as 90 for 9.0.
    pub capability: i32,
    /// Number of multiprocessors.
    pub multiprocessors: usize,
    /// Maximum shared memory per block in bytes.
    pub shared_bytes: usize,
    /// The newest CUDA version that the driver supports, such as 13000.
    pub driver_version: i32,
}

/// Why a driver call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub text: String,
    pub is_out_of_memory: bool,
}

/// A GPU with a context and two streams, in the thread that created it.
pub(super) struct Driver {
    functions: Arc<Functions>,
    parameter_info: Option<ParameterInfo>,
    device: c_int,
    /// The stream of operations.
    stream: Handle,
    /// Copies to the GPU that need not wait for all earlier operations.
    copies: Handle,
    pub card: Card,
}

/// A compiled program.
#[derive(Clone, Copy, Debug)]
pub(super) struct Module(Handle);

/// A kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function(Handle);

/// A point in a stream.
pub(super) struct Event {
    handle: Handle,
    functions: Arc<Functions>,
}

/// A CUDA graph: recorded operations that can be queued as a whole.
pub(super) struct Recording {
    executable: Handle,
    functions: Arc<Functions>,
}

/// One of the two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Work,
    Copies,
}

/// Pinned host memory, which the GPU copies from directly, if the system provides it.
pub(super) struct Pinned {
    pub start: *mut u8,
    pub length: usize,
    functions: Arc<Functions>,
}

/// The driver's CUDA_MEMCPY2D.
#[repr(C)]
struct CopyOfRows {
    from: MatrixOfBytes,
    to: MatrixOfBytes,
    width: usize,
    rows: usize,
}

/// One of its sides.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct MatrixOfBytes {
    x: usize,
    y: usize,
    kind: c_uint,
    host: usize,
    device: Address,
    array: usize,
    pitch: usize,
}

const ON_THE_HOST: c_uint = 1;
const ON_THE_GPU: c_uint = 2;

/// An argument of a kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Argument {
    Address(Address),
    I32(i32),
    I64(i64),
    U64(u64),
    F32(f32),
}

/// The most parameters of a kernel.
const MOST_ARGUMENTS: usize = 32;

/// Arguments of a kernel, put together from parts without allocating.
#[derive(Clone, Copy)]
pub(super) struct Arguments {
    arguments: [Argument; MOST_ARGUMENTS],
    count: usize,
}

impl Arguments {
    pub fn of<const N: usize>(first: [Argument; N]) -> Arguments {
        Arguments { arguments: [Argument::I32(0); MOST_ARGUMENTS], count: 0 }.and(first)
    }

    /// These, followed by more.
    pub fn and<const N: usize>(mut self, more: [Argument; N]) -> Arguments {
        self.arguments[self.count..self.count + N].copy_from_slice(&more);
        self.count += N;
        self
    }
}

impl std::ops::Deref for Arguments {
    type Target = [Argument];
    fn deref(&self) -> &[Argument] {
        &self.arguments[..self.count]
    }
}

impl Argument {
    /// Its size.
    pub fn bytes(&self) -> usize {
        match self {
            Argument::Address(_) | Argument::I64(_) | Argument::U64(_) => 8,
            Argument::I32(_) | Argument::F32(_) => 4,
        }
    }
}

impl Driver {
    /// Opens a GPU by its index.
    pub fn open(number: usize) -> Result<Driver, Unavailable> {
        let library = open("libcuda.so.1").or_else(|| open("libcuda.so")).ok_or_else(|| {
            Unavailable::absent(
                "no NVIDIA driver was found (libcuda.so.1)",
                "install the NVIDIA driver, in a container start it with `--gpus all`, or use `--device cpu`",
            )
        })?;
        // SAFETY: the type is that of the C declaration; the library stays loaded as long as `functions`.
        let parameter_info = unsafe { library.get::<ParameterInfo>(b"cuFuncGetParamInfo") }.ok().map(|found| *found);
        let functions = Functions::of(library).map_err(|name| {
            Unavailable::new(format!("the NVIDIA driver lacks {name}"), "install a driver for CUDA 12 or newer")
        })?;
        let functions = Arc::new(functions);
        let hint = "check `nvidia-smi`; the driver must support CUDA 12 or newer";
        let refused = |failure: Failure| Unavailable::new(format!("the GPU cannot be used: {}", failure.text), hint);
        let check = |status: Status, what: &str| functions.check(status, what).map_err(refused);
        let (mut version, mut count, mut device) = (0, 0, 0);
        // SAFETY: all pointers are to places of the right type, here and below.
        let started = unsafe { (functions.init)(0) };
        if started == NO_DEVICE {
            return Err(Unavailable::absent("this machine has no NVIDIA GPU", "use `--device cpu`"));
        }
        check(started, "starting the driver")?;
        // SAFETY: as above.
        check(unsafe { (functions.driver_version)(&mut version) }, "querying the driver's version")?;
        // SAFETY: as above.
        check(unsafe { (functions.device_count)(&mut count) }, "counting GPUs")?;
        if version < 12000 {
            let found = format!("the NVIDIA driver supports CUDA {}.{}", version / 1000, version % 1000 / 10);
            return Err(Unavailable::new(format!("{found}; 12.0 is required"), "install a newer driver"));
        }
        if number >= count as usize {
            let problem = format!("there is no GPU {number}: this machine has {count}");
            return Err(Unavailable::absent(problem, "CUDA_VISIBLE_DEVICES may hide some"));
        }
        // SAFETY: as above.
        check(unsafe { (functions.device_get)(&mut device, number as c_int) }, "finding the GPU")?;
        let mut name = [0 as c_char; 256];
        // SAFETY: the buffer of the name has this size.
        check(unsafe { (functions.device_name)(name.as_mut_ptr(), 256, device) }, "querying the GPU's name")?;
        let attribute = |which: c_int| {
            let mut value = 0;
            // SAFETY: as above.
            check(unsafe { (functions.device_attribute)(&mut value, which, device) }, "querying the GPU")?;
            Ok::<c_int, Unavailable>(value)
        };
        let card = Card {
            // SAFETY: the driver terminates it with a zero.
            name: unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().into_owned(),
            capability: attribute(ATTRIBUTE_MAJOR)? * 10 + attribute(ATTRIBUTE_MINOR)?,
            multiprocessors: attribute(ATTRIBUTE_MULTIPROCESSORS)? as usize,
            shared_bytes: attribute(ATTRIBUTE_SHARED)? as usize,
            driver_version: version,
        };
        if card.capability < 80 {
            let capability = format!("{}.{}", card.capability / 10, card.capability % 10);
            let problem = format!("{} has compute capability {capability}; 8.0 is required", card.name);
            return Err(Unavailable::new(problem, "use an Ampere card or newer (A100, RTX 30), or `--device cpu`"));
        }
        let (mut context, mut stream, mut copies) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        let busy = "another process may have exclusive use of the GPU or all its memory: check `nvidia-smi`";
        let taken = |failure: Failure| {
            Unavailable::new(format!("the GPU {} cannot be used: {}", card.name, failure.text), busy)
        };
        // SAFETY: as above; the context is released when the driver is dropped.
        let retained = unsafe { (functions.context_retain)(&mut context, device) };
        functions.check(retained, "creating a context").map_err(taken)?;
        // SAFETY: a context just created.
        check(unsafe { (functions.context_set)(context) }, "using the context")?;
        // SAFETY: as above.
        check(unsafe { (functions.stream_create)(&mut stream, NON_BLOCKING) }, "creating a stream")?;
        // SAFETY: as above.
        check(unsafe { (functions.stream_create)(&mut copies, NON_BLOCKING) }, "creating a stream")?;
        Ok(Driver { functions, parameter_info, device, stream, copies, card })
    }

    fn handle(&self, stream: Stream) -> Handle {
        match stream {
            Stream::Work => self.stream,
            Stream::Copies => self.copies,
        }
    }

    pub fn stream(&self) -> *mut c_void {
        self.stream
    }

    /// Free and total bytes of the GPU.
    pub fn memory(&self) -> Result<(usize, usize), Failure> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: two places of the right type.
        let status = unsafe { (self.functions.memory_info)(&mut free, &mut total) };
        self.functions.check(status, "querying free memory")?;
        Ok((free, total))
    }

    pub fn allocate(&self, bytes: usize) -> Result<Address, Failure> {
        let mut address = 0;
        // SAFETY: a place of the right type.
        let status = unsafe { (self.functions.allocate)(&mut address, bytes) };
        self.functions.check(status, "allocating memory")?;
        Ok(address)
    }

    /// # Safety
    /// It was allocated here, and nothing uses it any more.
    pub unsafe fn free(&self, address: Address) {
        // SAFETY: the caller's promise. A failure during shutdown changes nothing.
        unsafe { (self.functions.free)(address) };
    }

    /// Allocates pinned memory; `None` if the system provides none.
    pub fn pinned(&self, length: usize) -> Option<Pinned> {
        let mut start = std::ptr::null_mut();
        // SAFETY: a place of the right type.
        let status = unsafe { (self.functions.allocate_host)(&mut start, length, 0) };
        (status == 0).then(|| Pinned { start: start.cast(), length, functions: self.functions.clone() })
    }

    /// Makes later operations of a stream wait for an event.
    pub fn wait_in(&self, stream: Stream, event: &Event) -> Result<(), Failure> {
        // SAFETY: our own stream and event.
        let status = unsafe { (self.functions.stream_wait)(self.handle(stream), event.handle, 0) };
        self.functions.check(status, "waiting for another stream")
    }

    /// Queues a copy to the GPU.
    ///
    /// # Safety
    /// `from` has `bytes` bytes, which do not change until the copy is done; `to` lies inside memory of this GPU.
    pub unsafe fn copy_to(&self, to: Address, from: *const u8, bytes: usize, stream: Stream) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions.copy_to)(to, from.cast(), bytes, self.handle(stream)) };
        self.functions.check(status, "copying to the GPU")
    }

    /// Queues a copy of rows of `width` bytes from the host, which lie one behind the other there and `stride` bytes apart on the GPU.
    ///
    /// # Safety
    /// As [`Driver::copy_to`].
    pub unsafe fn copy_rows_to(
        &self,
        to: Address,
        stride: usize,
        from: *const u8,
        width: usize,
        rows: usize,
        stream: Stream,
    ) -> Result<(), Failure> {
        let none = MatrixOfBytes::default();
        let copy = CopyOfRows {
            from: MatrixOfBytes { kind: ON_THE_HOST, host: from as usize, pitch: width, ..none },
            to: MatrixOfBytes { kind: ON_THE_GPU, device: to, pitch: stride, ..none },
            width,
            rows,
        };
        // SAFETY: the caller's promise.
        let status = unsafe { (self.functions.copy_rows)(&copy, self.handle(stream)) };
        self.functions.check(status, "copying rows to the GPU")
    }

    /// Waits for all queued operations, and copies to the host.
    pub fn copy_from(&self, to: &mut [u8], from: Address) -> Result<(), Failure> {
        // SAFETY: the slice has this many bytes; the device's buffer lies inside its memory.
        let status = unsafe { (self.functions.copy_from)(to.as_mut_ptr().cast(), from, to.len(), self.stream) };
        self.functions.check(status, "copying from the GPU")?;
        self.wait(Stream::Work)
    }

    pub fn copy_within(&self, to: Address, from: Address, bytes: usize) -> Result<(), Failure> {
        // SAFETY: both lie inside memory of this GPU.
        let status = unsafe { (self.functions.copy_within)(to, from, bytes, self.stream) };
        self.functions.check(status, "copying on the GPU")
    }

    pub fn zero(&self, address: Address, bytes: usize) -> Result<(), Failure> {
        // SAFETY: inside memory of this GPU.
        let status = unsafe { (self.functions.set_bytes)(address, 0, bytes, self.stream) };
        self.functions.check(status, "filling GPU memory")
    }

    /// Waits for all queued operations of a stream.
    pub fn wait(&self, stream: Stream) -> Result<(), Failure> {
        // SAFETY: our own stream.
        let status = unsafe { (self.functions.stream_synchronize)(self.handle(stream)) };
        self.functions.check(status, "waiting for the GPU")
    }

    pub fn event(&self) -> Result<Event, Failure> {
        let mut handle = std::ptr::null_mut();
        // SAFETY: a place of the right type.
        self.functions.check(unsafe { (self.functions.event_create)(&mut handle, 0) }, "creating an event")?;
        Ok(Event { handle, functions: self.functions.clone() })
    }

    /// Records an event at the current point of a stream.
    pub fn record(&self, event: &Event, stream: Stream) -> Result<(), Failure> {
        // SAFETY: our own event and stream.
        let status = unsafe { (self.functions.event_record)(event.handle, self.handle(stream)) };
        self.functions.check(status, "recording an event")
    }

    /// Starts recording the stream of operations instead of running them.
    pub fn begin_recording(&self) -> Result<(), Failure> {
        // SAFETY: our own stream.
        let status = unsafe { (self.functions.capture_begin)(self.stream, CAPTURE_RELAXED) };
        self.functions.check(status, "recording work")
    }

    /// Ends recording and returns the graph, ready to be queued.
    pub fn end_recording(&self) -> Result<Recording, Failure> {
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: our own stream, which is recording, and a place for the graph.
        self.functions.check(unsafe { (self.functions.capture_end)(self.stream, &mut graph) }, "recording work")?;
        // SAFETY: the graph just created; it is not needed after this.
        let status = unsafe {
            let status = (self.functions.graph_instantiate)(&mut executable, graph, 0);
            (self.functions.graph_destroy)(graph);
            status
        };
        self.functions.check(status, "preparing recorded work")?;
        Ok(Recording { executable, functions: self.functions.clone() })
    }

    /// Queues a recording.
    pub fn queue(&self, recording: &Recording) -> Result<(), Failure> {
        // SAFETY: our own recording; what it uses lives as long as the device.
        let status = unsafe { (self.functions.graph_launch)(recording.executable, self.stream) };
        self.functions.check(status, "queueing recorded work")
    }

    /// Loads a compiled program; it stays as long as the context.
    pub fn load(&self, cubin: &[u8]) -> Result<Module, Failure> {
        let mut module = std::ptr::null_mut();
        // SAFETY: a whole program, which the driver copies.
        let status = unsafe { (self.functions.module_load)(&mut module, cubin.as_ptr().cast()) };
        self.functions.check(status, "loading kernels")?;
        Ok(Module(module))
    }

    /// A kernel by its name, if the program has it.
    pub fn function(&self, module: Module, name: &str) -> Option<Function> {
        let mut function = std::ptr::null_mut();
        let symbol = std::ffi::CString::new(name).ok()?;
        // SAFETY: a loaded module and a zero-terminated name.
        let status = unsafe { (self.functions.module_function)(&mut function, module.0, symbol.as_ptr()) };
        (status == 0).then_some(Function(function))
    }

    /// Bytes of each parameter of a kernel; `None` if this driver does not tell.
    pub fn parameters(&self, function: Function) -> Option<Vec<usize>> {
        let info = self.parameter_info?;
        let of = |index| {
            let (mut offset, mut size) = (0, 0);
            // SAFETY: a function of a loaded module, and two places of the right type.
            (unsafe { info(function.0, index, &mut offset, &mut size) } == 0).then_some(size)
        };
        let sizes: Vec<usize> = (0..).map_while(of).collect();
        // Every kernel with parameters has a first one: a driver that does not tell it tells nothing.
        (!sizes.is_empty()).then_some(sizes)
    }

    /// Allows blocks of a kernel this much shared memory.
    pub fn allow_shared(&self, function: Function, bytes: usize) -> Result<(), Failure> {
        // SAFETY: a function of a loaded module.
        let status = unsafe { (self.functions.function_attribute)(function.0, FUNCTION_SHARED, bytes as c_int) };
        self.functions.check(status, "requesting shared memory")
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The arguments match the kernel's declaration, and what it reads and writes lies inside memory of this GPU.
    pub unsafe fn launch(
        &self,
        function: Function,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        let place = |argument: &Argument| -> *mut c_void {
            match argument {
                Argument::Address(value) | Argument::U64(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::I32(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::I64(value) => std::ptr::from_ref(value).cast_mut().cast(),
                Argument::F32(value) => std::ptr::from_ref(value).cast_mut().cast(),
            }
        };
        let mut places = [std::ptr::null_mut(); MOST_ARGUMENTS];
        assert!(arguments.len() <= places.len());
        places.iter_mut().zip(arguments).for_each(|(to, argument)| *to = place(argument));
        let [gx, gy, gz] = grid.map(|size| size as c_uint);
        let [bx, by, bz] = block.map(|size| size as c_uint);
        // SAFETY: the caller's promise; the driver copies the arguments before it returns.
        let status = unsafe {
            (self.functions.launch)(
                function.0,
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                shared as c_uint,
                self.stream,
                places.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        self.functions.check(status, "launching a kernel")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // SAFETY: our own streams and our share of the context, released once.
        unsafe {
            for stream in [self.stream, self.copies] {
                (self.functions.stream_synchronize)(stream);
                (self.functions.stream_destroy)(stream);
            }
            (self.functions.context_release)(self.device);
        }
    }
}

impl Event {
    /// Waits until the stream has reached the event.
    pub fn wait(&self) -> Result<(), Failure> {
        // SAFETY: our own event.
        self.functions.check(unsafe { (self.functions.event_synchronize)(self.handle) }, "waiting for the GPU")
    }

    /// Seconds between an earlier event and this one, which the stream has reached.
    pub fn seconds_since(&self, earlier: &Event) -> Result<f64, Failure> {
        let mut milliseconds = 0.0;
        // SAFETY: a place of the right type and two events of ours.
        let status = unsafe { (self.functions.event_elapsed)(&mut milliseconds, earlier.handle, self.handle) };
        self.functions.check(status, "querying the time between events")?;
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: our own event, destroyed once.
        unsafe { (self.functions.event_destroy)(self.handle) };
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // SAFETY: our own recording, destroyed once.
        unsafe { (self.functions.executable_destroy)(self.executable) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: our own memory, freed once.
        unsafe { (self.functions.free_host)(self.start.cast()) };
    }
}

impl Functions {
    fn check(&self, status: Status, what: &str) -> Result<(), Failure> {
        if status == 0 {
            return Ok(());
        }
        let text = |function: unsafe extern "C" fn(Status, *mut *const c_char) -> Status| {
            let mut text = std::ptr::null();
            // SAFETY: a place for a pointer to a text that lives as long as the library.
            let found = unsafe { function(status, &mut text) } == 0 && !text.is_null();
            // SAFETY: just checked.
            found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        let name = text(self.error_name).unwrap_or_else(|| format!("error {status}"));
        let words = text(self.error_text).unwrap_or_default();
        let why = if words.is_empty() { name } else { format!("{words} ({name})") };
        Err(Failure { text: format!("{what} failed: {why}"), is_out_of_memory: status == OUT_OF_MEMORY })
    }
}
