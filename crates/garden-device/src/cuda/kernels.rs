//! Kernels: source code, compilation for the installed card with a disk cache, and launching.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::compiler::{Compiler, OPTIONS};
use super::driver::{Argument, Driver, Failure, Function, Module};
use super::library::Unavailable;

/// Source prepended to every program.
const PRELUDE: [&str; 2] = [include_str!("kernels/instructions.cu"), include_str!("kernels/common.cu")];

/// A program: its name, its source, and its kernels.
pub struct Program {
    /// Its name.
    pub name: &'static str,
    sources: &'static [&'static str],
    kernels: &'static [&'static str],
    /// The head size that its templates are compiled for.
    head_size: Option<usize>,
    /// The one compute capability that it is for, whose own instructions it uses.
    only_for: Option<i32>,
}

impl Program {
    /// The whole source.
    pub fn source(&self) -> String {
        let head_size = self.head_size.map_or(String::new(), |size| format!("#define HEAD_SIZE {size}\n"));
        [&[head_size.as_str()], &PRELUDE[..], self.sources].concat().join("\n")
    }

    /// The architecture that it is compiled for on a card of this compute capability; `None` if it is for others.
    pub fn architecture(&self, capability: i32) -> Option<String> {
        match self.only_for {
            None => Some(format!("sm_{capability}")),
            // Instructions of one capability are part of the architecture with an `a`.
            Some(only) => (only == capability).then(|| format!("sm_{capability}a")),
        }
    }
}

/// Kernels for all cards.
const fn for_all(name: &'static str, sources: &'static [&'static str], kernels: &'static [&'static str]) -> Program {
    Program { name, sources, kernels, head_size: None, only_for: None }
}

/// Attention on tensor cores with heads of one size. Each size is a program of its own, so that they compile side by side.
const fn attention(name: &'static str, head_size: usize, kernels: &'static [&'static str]) -> Program {
    const SOURCES: [&str; 2] = [include_str!("kernels/attention_common.cu"), include_str!("kernels/attention.cu")];
    Program { name, sources: &SOURCES, kernels, head_size: Some(head_size), only_for: None }
}

/// The same on Hopper.
const fn attention_hopper(name: &'static str, head_size: usize, kernels: &'static [&'static str]) -> Program {
    const SOURCES: [&str; 3] = [
        include_str!("kernels/wgmma.cu"),
        include_str!("kernels/attention_common.cu"),
        include_str!("kernels/attention_hopper.cu"),
    ];
    Program { name, sources: &SOURCES, kernels, head_size: Some(head_size), only_for: Some(HOPPER) }
}

/// Compute capability of the H100 and the H200.
pub(super) const HOPPER: i32 = 90;

/// All programs.
pub const PROGRAMS: [Program; 14] = [
    for_all(
        "elementwise",
        &[include_str!("kernels/elementwise.cu")],
        &[
            "add_bf16",
            "add_bias_bf16_f32",
            "add_pieces",
            "bias_gradient_bf16",
            "convert_bf16_bf16",
            "convert_bf16_f16",
            "convert_bf16_f32",
            "convert_f16_bf16",
            "convert_f16_f16",
            "convert_f16_f32",
            "convert_f32_bf16",
            "convert_f32_f16",
            "convert_f32_f32",
            "copy_rows_bf16",
            "digest",
            "dropout_bf16",
            "embed_backward_bf16",
            "embed_bf16_bf16",
            "gather_bf16",
            "gelu_backward_bf16",
            "gelu_bf16",
            "rotate_bf16",
            "scale_f32",
            "scatter_bf16",
            "swiglu_backward_bf16",
            "swiglu_bf16",
            "trap",
        ],
    ),
    for_all(
        "norm",
        &[include_str!("kernels/norm.cu")],
        &[
            "rms_norm_2048",
            "rms_norm_4096",
            "rms_norm_backward_bf16_f32",
            "rms_norm_bf16_f32",
            "rms_norm_weight_gradient_bf16",
        ],
    ),
    for_all(
        "loss",
        &[include_str!("kernels/loss.cu")],
        &["add_losses", "add_squares", "best_of_rows_bf16", "cross_entropy_bf16", "squares"],
    ),
    for_all(
        "optimizer",
        &[include_str!("kernels/optimizer.cu")],
        &["adamw", "adamw_narrow", "adamw_step", "cast_shadow"],
    ),
    for_all("nf4", &[include_str!("kernels/nf4.cu")], &["widen_nf4_bf16", "widen_nf4_double_bf16"]),
    for_all(
        "attention_plain",
        &[include_str!("kernels/attention_plain.cu")],
        &["attend_along_bf16", "attend_backward_keys_bf16", "attend_backward_queries_bf16", "attend_bf16"],
    ),
    for_all(
        "attention_cached",
        &[include_str!("kernels/attention_cached.cu")],
        &["attend_add_pieces_128", "attend_add_pieces_64", "attend_pieces_128", "attend_pieces_64"],
    ),
    for_all("attention_tiles", &[include_str!("kernels/attention_tiles.cu")], &["attend_add_splits", "attend_tiles"]),
    attention(
        "attention_64",
        64,
        &[
            "attend_64_128",
            "attend_64_64",
            "attend_backward_keys_64_64",
            "attend_backward_queries_64_128",
            "attend_backward_queries_64_64",
        ],
    ),
    attention(
        "attention_80",
        80,
        &[
            "attend_80_128",
            "attend_80_64",
            "attend_backward_keys_80_64",
            "attend_backward_queries_80_128",
            "attend_backward_queries_80_64",
        ],
    ),
    attention(
        "attention_128",
        128,
        &[
            "attend_128_128",
            "attend_128_64",
            "attend_backward_keys_128_32",
            "attend_backward_keys_128_64",
            "attend_backward_queries_128_128",
            "attend_backward_queries_128_64",
        ],
    ),
    attention_hopper(
        "attention_hopper_64",
        64,
        &["attend_backward_keys_hopper_64", "attend_backward_queries_hopper_64", "attend_hopper_64"],
    ),
    attention_hopper(
        "attention_hopper_80",
        80,
        &["attend_backward_keys_hopper_80", "attend_backward_queries_hopper_80", "attend_hopper_80"],
    ),
    attention_hopper(
        "attention_hopper_128",
        128,
        &["attend_backward_keys_hopper_128", "attend_backward_queries_hopper_128", "attend_hopper_128"],
    ),
];

/// Shared memory that every kernel may use without opt-in.
const SHARED_WITHOUT_ASKING: usize = 48 << 10;

/// All kernels of a card.
pub(super) struct Kernels {
    kernels: HashMap<&'static str, Kernel>,
}

/// A kernel.
struct Kernel {
    function: Function,
    /// Shared memory that its blocks may use.
    shared: usize,
    /// Bytes of each of its parameters, where the driver tells.
    parameters: Option<Vec<usize>>,
}

/// A program as it is needed on this card: what it is compiled for, and the cache's file.
struct Wanted {
    program: &'static Program,
    architecture: String,
    file: Option<PathBuf>,
}

impl Kernels {
    /// Loads cached programs from disk, and compiles the others in parallel. `tell` receives messages about slow work.
    pub fn load(driver: &Driver, tell: &dyn Fn(&str)) -> Result<Kernels, Unavailable> {
        // The compiler's version is part of the cache's file names, so it is needed even if nothing has to be compiled.
        let compiler = Compiler::find(driver.card.driver_version / 1000)?;
        let cache = cache_folder();
        let wanted = PROGRAMS.iter().filter_map(|program| {
            let architecture = program.architecture(driver.card.capability)?;
            let name = file_name(program.name, &program.source(), &architecture, compiler.version);
            Some(Wanted { program, architecture, file: cache.as_ref().map(|folder| folder.join(name)) })
        });
        let wanted: Vec<Wanted> = wanted.collect();
        let kept = wanted.iter().map(|wanted| driver.load(&std::fs::read(wanted.file.as_ref()?).ok()?).ok());
        let kept: Vec<Option<Module>> = kept.collect();
        if kept.iter().any(Option::is_none) {
            tell(&format!("compiling kernels for {} (done once)", driver.card.name));
        }
        let compiled: Vec<Option<Result<Vec<u8>, String>>> = std::thread::scope(|scope| {
            let start = |(Wanted { program, architecture, .. }, kept): (&'_ Wanted, &Option<Module>)| {
                let (compiler, program, architecture) = (&compiler, *program, architecture.clone());
                let compile = move || compiler.compile(program.name, &program.source(), &architecture);
                kept.is_none().then(|| scope.spawn(compile))
            };
            let threads: Vec<_> = wanted.iter().zip(&kept).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<u8>, String>>| {
                thread.join().unwrap_or_else(|_| Err("the compiler panicked".into()))
            };
            threads.into_iter().map(|thread| thread.map(join)).collect()
        });
        let mut kernels = HashMap::new();
        for ((Wanted { program, architecture, file }, kept), compiled) in wanted.iter().zip(kept).zip(compiled) {
            let name = program.name;
            let Some(compiled) = compiled else {
                if let Some(module) = kept {
                    find(driver, module, program, &mut kernels)?;
                }
                continue;
            };
            let cubin = compiled.map_err(|problem| {
                let problem = format!("the kernels `{name}` cannot be compiled for {architecture}: {problem}");
                Unavailable::new(problem, format!("NVRTC is {}; another version may help", compiler.path.display()))
            })?;
            let module = driver.load(&cubin).map_err(|failure| {
                let (version, path) = (compiler.version, compiler.path.display());
                let hint = format!("NVRTC is {version:?} from {path}; it must not be newer than the driver");
                Unavailable::new(format!("the kernels `{name}` cannot be loaded: {}", failure.text), hint)
            })?;
            find(driver, module, program, &mut kernels)?;
            if let Some(file) = file {
                keep(file, &cubin);
            }
        }
        Ok(Kernels { kernels })
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// As [`Driver::launch`].
    ///
    /// # Panics
    /// If there is no such kernel, or if the arguments are not as many, or not as large, as its parameters.
    pub unsafe fn launch(
        &mut self,
        driver: &Driver,
        name: &'static str,
        grid: [usize; 3],
        block: [usize; 3],
        shared: usize,
        arguments: &[Argument],
    ) -> Result<(), Failure> {
        let kernel = self.kernels.get_mut(name);
        let kernel = kernel.unwrap_or_else(|| panic!("kernel {name} is not in the list of its program"));
        if let Some(parameters) = &kernel.parameters {
            let given = arguments.iter().map(Argument::bytes);
            assert!(given.eq(parameters.iter().copied()), "{name} takes {parameters:?} bytes, not {arguments:?}");
        }
        if shared > kernel.shared {
            driver.allow_shared(kernel.function, shared)?;
            kernel.shared = shared;
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(kernel.function, grid, block, shared, arguments) }
    }
}

/// Looks up the kernels of a program.
fn find(
    driver: &Driver,
    module: Module,
    program: &Program,
    kernels: &mut HashMap<&'static str, Kernel>,
) -> Result<(), Unavailable> {
    for name in program.kernels {
        let function = driver.function(module, name).ok_or_else(|| {
            Unavailable::new(format!("the kernels `{}` lack {name}", program.name), "this is a bug in model-garden")
        })?;
        let parameters = driver.parameters(function);
        kernels.insert(name, Kernel { function, shared: SHARED_WITHOUT_ASKING, parameters });
    }
    Ok(())
}

/// The cache folder of compiled programs; `None` without a home folder.
fn cache_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    Some(cache.join("model-garden/kernels"))
}

/// A file name that covers every input of a compiled program.
pub fn file_name(name: &str, source: &str, architecture: &str, version: (i32, i32)) -> String {
    let digest = |offset: u64| {
        let bytes = source.bytes().chain(architecture.bytes()).chain(OPTIONS.iter().flat_map(|option| option.bytes()));
        bytes.fold(offset, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (first, second) = (digest(0xcbf2_9ce4_8422_2325), digest(0x6c62_272e_07bb_0142));
    format!("{name}-{architecture}-{}.{}-{first:016x}{second:016x}.cubin", version.0, version.1)
}

/// Caches a compiled program atomically. Without it the next start takes longer.
fn keep(file: &Path, cubin: &[u8]) {
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    // Nothing depends on it.
    drop(folder.and_then(|()| garden_files::replace(file, cubin)));
}
