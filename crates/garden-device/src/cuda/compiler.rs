//! NVRTC: compiles kernels from source for one architecture. Needs no GPU.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use super::library::{Unavailable, find, functions, open, open_builtins};

type Program = *mut c_void;

functions! {
    Functions {
        version = "nvrtcVersion" (*mut c_int, *mut c_int) -> c_int;
        create = "nvrtcCreateProgram" (
            *mut Program, *const c_char, *const c_char, c_int, *const *const c_char, *const *const c_char
        ) -> c_int;
        compile = "nvrtcCompileProgram" (Program, c_int, *const *const c_char) -> c_int;
        log_size = "nvrtcGetProgramLogSize" (Program, *mut usize) -> c_int;
        log = "nvrtcGetProgramLog" (Program, *mut c_char) -> c_int;
        cubin_size = "nvrtcGetCUBINSize" (Program, *mut usize) -> c_int;
        cubin = "nvrtcGetCUBIN" (Program, *mut c_char) -> c_int;
        destroy = "nvrtcDestroyProgram" (*mut Program) -> c_int;
        error_text = "nvrtcGetErrorString" (c_int) -> *const c_char;
    }
}

/// Compiler options.
pub(super) const OPTIONS: [&str; 2] = ["--std=c++17", "--device-as-default-execution-space"];

/// The NVRTC compiler.
pub struct Compiler {
    functions: Functions,
    /// Major and minor version.
    pub version: (i32, i32),
    /// The path of its library.
    pub path: PathBuf,
}

impl std::fmt::Debug for Compiler {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "NVRTC {:?} of {}", self.version, self.path.display())
    }
}

impl Compiler {
    /// Finds NVRTC, of at most this major version.
    pub fn find(most_major: i32) -> Result<Compiler, Unavailable> {
        let (library, path) = find("libnvrtc", "cuda-nvrtc", most_major)?;
        Compiler::of(library, path)
    }

    /// The NVRTC of this file.
    pub fn at(path: &Path) -> Result<Compiler, Unavailable> {
        open_builtins(path);
        let library = open(path).ok_or_else(|| {
            Unavailable::new(format!("{} cannot be opened", path.display()), "name the file of NVRTC: libnvrtc.so.13")
        })?;
        Compiler::of(library, path.to_path_buf())
    }

    fn of(library: Library, path: PathBuf) -> Result<Compiler, Unavailable> {
        let functions = Functions::of(library).map_err(|name| {
            Unavailable::new(format!("{} lacks {name}", path.display()), "install NVRTC from CUDA 12 or newer")
        })?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two places of the right type.
        unsafe { (functions.version)(&mut major, &mut minor) };
        Ok(Compiler { functions, version: (major, minor), path })
    }

    /// Compiles a program for an architecture such as `sm_90`; the error has the compiler's messages.
    pub fn compile(&self, name: &str, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        let zero = |text: &str| CString::new(text).map_err(|_| "a zero byte in a program".to_string());
        let (name, source) = (zero(name)?, zero(source)?);
        let architecture = format!("--gpu-architecture={architecture}");
        let options = OPTIONS.into_iter().chain([architecture.as_str()]);
        let options = options.map(zero).collect::<Result<Vec<CString>, String>>()?;
        let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let mut program = std::ptr::null_mut();
        let none = std::ptr::null();
        // SAFETY: zero-terminated texts, no headers, and a place for the program.
        let status = unsafe { (self.functions.create)(&mut program, source.as_ptr(), name.as_ptr(), 0, none, none) };
        self.check(status)?;
        let made = Made { functions: &self.functions, program };
        // SAFETY: a program just created, and as many options as stated.
        let status = unsafe { (self.functions.compile)(made.program, options.len() as c_int, options.as_ptr()) };
        if let Err(problem) = self.check(status) {
            return Err(format!("{problem}\n{}", made.log()));
        }
        let mut size = 0;
        // SAFETY: a compiled program and a place for its size.
        self.check(unsafe { (self.functions.cubin_size)(made.program, &mut size) })?;
        let mut cubin = vec![0; size];
        // SAFETY: the buffer has the stated size.
        self.check(unsafe { (self.functions.cubin)(made.program, cubin.as_mut_ptr().cast()) })?;
        Ok(cubin)
    }

    fn check(&self, status: c_int) -> Result<(), String> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: a text that lives as long as the library.
        Err(unsafe { CStr::from_ptr((self.functions.error_text)(status)) }.to_string_lossy().into_owned())
    }
}

/// A program, destroyed on drop.
struct Made<'a> {
    functions: &'a Functions,
    program: Program,
}

impl Made<'_> {
    fn log(&self) -> String {
        let mut size = 0;
        // SAFETY: our own program and a place for the size.
        unsafe { (self.functions.log_size)(self.program, &mut size) };
        let mut log = vec![0_u8; size];
        // SAFETY: the buffer has the stated size.
        unsafe { (self.functions.log)(self.program, log.as_mut_ptr().cast()) };
        String::from_utf8_lossy(&log).trim_end_matches('\0').to_string()
    }
}

impl Drop for Made<'_> {
    fn drop(&mut self) {
        // SAFETY: our own program, destroyed once.
        unsafe { (self.functions.destroy)(&mut self.program) };
    }
}
