//! Kernels: their source, compiled for the card that is there and kept on disk, and how they are started.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::compiler::Compiler;
use super::driver::{Argument, Driver, Failure, Function, Module};
use super::library::Unavailable;

/// What stands before every program.
const PRELUDE: [&str; 2] = [include_str!("kernels/instructions.cu"), include_str!("kernels/common.cu")];

/// The programs: name and source.
pub const PROGRAMS: [(&str, &str); 7] = [
    ("elementwise", include_str!("kernels/elementwise.cu")),
    ("norm", include_str!("kernels/norm.cu")),
    ("loss", include_str!("kernels/loss.cu")),
    ("optimizer", include_str!("kernels/optimizer.cu")),
    ("nf4", include_str!("kernels/nf4.cu")),
    ("attention_plain", include_str!("kernels/attention_plain.cu")),
    ("attention", include_str!("kernels/attention.cu")),
];

/// Shared memory that every kernel may have without asking.
const SHARED_WITHOUT_ASKING: usize = 48 << 10;

/// The whole source of a program.
pub fn source(program: &str) -> String {
    PRELUDE.iter().copied().chain([program]).collect::<Vec<&str>>().join("\n")
}

/// All kernels of a card.
pub(super) struct Kernels {
    modules: Vec<Module>,
    functions: HashMap<&'static str, (Function, usize)>,
}

impl Kernels {
    /// Takes compiled programs from the disk where they are, compiles the others, and loads all.
    pub fn load(driver: &Driver) -> Result<Kernels, Unavailable> {
        let architecture = format!("sm_{}", driver.card.capability);
        let major = driver.card.driver_version / 1000;
        let mut compiler = None;
        let mut modules = Vec::new();
        let cache = cache_folder();
        for (name, program) in PROGRAMS {
            let source = source(program);
            // The compiler's version is part of the name, so it is looked for even where nothing has to be compiled.
            if compiler.is_none() {
                compiler = Some(Compiler::find(major)?);
            }
            let Some(compiler) = &compiler else { continue };
            let file =
                cache.as_ref().map(|folder| folder.join(file_name(name, &source, &architecture, compiler.version)));
            let kept = file.as_ref().and_then(|file| std::fs::read(file).ok());
            if let Some(module) = kept.and_then(|cubin| driver.load(&cubin).ok()) {
                modules.push(module);
                continue;
            }
            let cubin = compiler.compile(name, &source, &architecture).map_err(|problem| {
                let problem = format!("the kernels `{name}` cannot be compiled for {architecture}: {problem}");
                Unavailable::new(problem, format!("NVRTC is {}; another version may help", compiler.path.display()))
            })?;
            let module = driver.load(&cubin).map_err(|failure| {
                let (version, path) = (compiler.version, compiler.path.display());
                let hint = format!("NVRTC is {version:?} of {path}; it must not be newer than the driver");
                Unavailable::new(format!("the kernels `{name}` cannot be loaded: {}", failure.text), hint)
            })?;
            modules.push(module);
            if let Some(file) = &file {
                keep(file, &cubin);
            }
        }
        Ok(Kernels { modules, functions: HashMap::new() })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// As [`Driver::launch`].
    ///
    /// # Panics
    /// If there is no such kernel.
    pub unsafe fn launch(
        &mut self,
        driver: &Driver,
        name: &'static str,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        let (function, allowed) = match self.functions.get(name) {
            Some(found) => *found,
            None => {
                let found = self.modules.iter().find_map(|module| driver.function(*module, name));
                let found = found.unwrap_or_else(|| panic!("there is no kernel {name}"));
                self.functions.insert(name, (found, SHARED_WITHOUT_ASKING));
                (found, SHARED_WITHOUT_ASKING)
            }
        };
        if shared > allowed {
            driver.allow_shared(function, shared)?;
            self.functions.insert(name, (function, shared));
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(function, grid, block, shared, arguments) }
    }
}

/// Where compiled programs are kept; nowhere if there is no home.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("model-garden/kernels"))
}

/// A name for everything that a compiled program follows from.
fn file_name(name: &str, source: &str, architecture: &str, version: (i32, i32)) -> String {
    let digest = |offset: u64| {
        let bytes = source.bytes().chain(architecture.bytes());
        bytes.fold(offset, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (first, second) = (digest(0xcbf2_9ce4_8422_2325), digest(0x6c62_272e_07bb_0142));
    format!("{name}-{architecture}-{}.{}-{first:016x}{second:016x}.cubin", version.0, version.1)
}

/// Keeps a compiled program, wholly or not at all. Without it the next start takes longer.
fn keep(file: &Path, cubin: &[u8]) {
    let draft = file.with_extension(format!("{}.part", std::process::id()));
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(&draft, cubin)).and_then(|()| std::fs::rename(&draft, file));
    if written.is_err() {
        // Nothing depends on it.
        std::fs::remove_file(&draft).unwrap_or(());
    }
}
