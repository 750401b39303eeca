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
    source: &'static str,
    kernels: &'static [&'static str],
    /// The head size that its templates are compiled for.
    head_size: Option<usize>,
}

impl Program {
    /// The whole source.
    pub fn source(&self) -> String {
        let head_size = self.head_size.map_or(String::new(), |size| format!("#define HEAD_SIZE {size}\n"));
        [head_size.as_str(), PRELUDE[0], PRELUDE[1], self.source].join("\n")
    }
}

/// All programs.
pub const PROGRAMS: [Program; 11] = [
    Program {
        name: "elementwise",
        source: include_str!("kernels/elementwise.cu"),
        kernels: &[
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
        head_size: None,
    },
    Program {
        name: "norm",
        source: include_str!("kernels/norm.cu"),
        kernels: &["rms_norm_backward_bf16_f32", "rms_norm_bf16_f32", "rms_norm_weight_gradient_bf16"],
        head_size: None,
    },
    Program {
        name: "loss",
        source: include_str!("kernels/loss.cu"),
        kernels: &["add_losses", "add_squares", "best_of_rows_bf16", "cross_entropy_bf16", "squares"],
        head_size: None,
    },
    Program {
        name: "optimizer",
        source: include_str!("kernels/optimizer.cu"),
        kernels: &["adamw", "adamw_narrow", "adamw_step", "cast_shadow"],
        head_size: None,
    },
    Program {
        name: "nf4",
        source: include_str!("kernels/nf4.cu"),
        kernels: &["widen_nf4_bf16", "widen_nf4_double_bf16"],
        head_size: None,
    },
    Program {
        name: "attention_plain",
        source: include_str!("kernels/attention_plain.cu"),
        kernels: &["attend_along_bf16", "attend_backward_keys_bf16", "attend_backward_queries_bf16", "attend_bf16"],
        head_size: None,
    },
    Program {
        name: "attention_cached",
        source: include_str!("kernels/attention_cached.cu"),
        kernels: &["attend_add_pieces_128", "attend_add_pieces_64", "attend_pieces_128", "attend_pieces_64"],
        head_size: None,
    },
    Program {
        name: "attention_tiles",
        source: include_str!("kernels/attention_tiles.cu"),
        kernels: &["attend_add_splits", "attend_tiles"],
        head_size: None,
    },
    Program {
        name: "attention_64",
        source: include_str!("kernels/attention.cu"),
        kernels: &[
            "attend_64_128",
            "attend_64_64",
            "attend_backward_keys_64_64",
            "attend_backward_queries_64_128",
            "attend_backward_queries_64_64",
        ],
        head_size: Some(64),
    },
    Program {
        name: "attention_80",
        source: include_str!("kernels/attention.cu"),
        kernels: &[
            "attend_80_128",
            "attend_80_64",
            "attend_backward_keys_80_64",
            "attend_backward_queries_80_128",
            "attend_backward_queries_80_64",
        ],
        head_size: Some(80),
    },
    Program {
        name: "attention_128",
        source: include_str!("kernels/attention.cu"),
        kernels: &[
            "attend_128_128",
            "attend_128_64",
            "attend_backward_keys_128_32",
            "attend_backward_keys_128_64",
            "attend_backward_queries_128_128",
            "attend_backward_queries_128_64",
        ],
        head_size: Some(128),
    },
];

/// Shared memory that every kernel may use without opt-in.
const SHARED_WITHOUT_ASKING: usize = 48 << 10;

/// All kernels of a card.
pub(super) struct Kernels {
    functions: HashMap<&'static str, (Function, usize)>,
}

impl Kernels {
    /// Loads cached programs from disk, and compiles the others in parallel. `tell` receives messages about slow work.
    pub fn load(driver: &Driver, tell: &dyn Fn(&str)) -> Result<Kernels, Unavailable> {
        let architecture = format!("sm_{}", driver.card.capability);
        let major = driver.card.driver_version / 1000;
        // The compiler's version is part of the cache's file names, so it is needed even if nothing has to be compiled.
        let compiler = Compiler::find(major)?;
        let cache = cache_folder();
        let files = PROGRAMS.each_ref().map(|program| {
            let name = file_name(program.name, &program.source(), &architecture, compiler.version);
            cache.as_ref().map(|folder| folder.join(name))
        });
        let kept = files.each_ref().map(|file| {
            let cubin = std::fs::read(file.as_ref()?).ok()?;
            driver.load(&cubin).ok()
        });
        if kept.iter().any(Option::is_none) {
            tell(&format!("compiling kernels for {} (done once)", driver.card.name));
        }
        let compiled: Vec<Option<Result<Vec<u8>, String>>> = std::thread::scope(|scope| {
            let start = |(program, kept): (&'static Program, &Option<Module>)| {
                let (compiler, architecture) = (&compiler, architecture.as_str());
                let compile = move || compiler.compile(program.name, &program.source(), architecture);
                kept.is_none().then(|| scope.spawn(compile))
            };
            let threads: Vec<_> = PROGRAMS.iter().zip(&kept).map(start).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<u8>, String>>| {
                thread.join().unwrap_or_else(|_| Err("the compiler panicked".into()))
            };
            threads.into_iter().map(|thread| thread.map(join)).collect()
        });
        let mut functions = HashMap::new();
        for (((program, kept), compiled), file) in PROGRAMS.iter().zip(kept).zip(compiled).zip(files) {
            let name = program.name;
            let Some(compiled) = compiled else {
                if let Some(module) = kept {
                    find(driver, module, program, &mut functions)?;
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
            find(driver, module, program, &mut functions)?;
            if let Some(file) = &file {
                keep(file, &cubin);
            }
        }
        Ok(Kernels { functions })
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
        let found = self.functions.get(name);
        let (function, allowed) = *found.unwrap_or_else(|| panic!("kernel {name} is not in the list of its program"));
        if shared > allowed {
            driver.allow_shared(function, shared)?;
            self.functions.insert(name, (function, shared));
        }
        // SAFETY: the caller's promise.
        unsafe { driver.launch(function, grid, block, shared, arguments) }
    }
}

/// Looks up the kernels of a program.
fn find(
    driver: &Driver,
    module: Module,
    program: &Program,
    functions: &mut HashMap<&'static str, (Function, usize)>,
) -> Result<(), Unavailable> {
    for name in program.kernels {
        let function = driver.function(module, name).ok_or_else(|| {
            Unavailable::new(format!("the kernels `{}` lack {name}", program.name), "this is a bug in model-garden")
        })?;
        functions.insert(name, (function, SHARED_WITHOUT_ASKING));
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
fn file_name(name: &str, source: &str, architecture: &str, version: (i32, i32)) -> String {
    let digest = |offset: u64| {
        let bytes = source.bytes().chain(architecture.bytes()).chain(OPTIONS.iter().flat_map(|option| option.bytes()));
        bytes.fold(offset, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    };
    let (first, second) = (digest(0xcbf2_9ce4_8422_2325), digest(0x6c62_272e_07bb_0142));
    format!("{name}-{architecture}-{}.{}-{first:016x}{second:016x}.cubin", version.0, version.1)
}

/// Caches a compiled program atomically. Without it the next start takes longer.
fn keep(file: &Path, cubin: &[u8]) {
    let draft = file.with_extension(format!("{}.part", std::process::id()));
    let folder = file.parent().map_or(Ok(()), std::fs::create_dir_all);
    let written = folder.and_then(|()| std::fs::write(&draft, cubin)).and_then(|()| std::fs::rename(&draft, file));
    if written.is_err() {
        // Nothing depends on it.
        std::fs::remove_file(&draft).unwrap_or(());
    }
}
