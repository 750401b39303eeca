//! All CUDA kernels compile, without a GPU: with NVRTC of a toolkit or of a Python environment, or the one that `GARDEN_NVRTC` names.
//!
//! For an A100 and an H100, or, with `GARDEN_CARDS=all`, for every card that is supported. What has been compiled before, with the same source and compiler, is not
//! compiled again.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test ends where something is not as it should be")]

use std::path::Path;

use garden_device::cuda::compiler::Compiler;
use garden_device::cuda::kernels::{PROGRAMS, file_name};

/// A100, RTX 30, RTX 40, Hopper, Blackwell for servers and for desks.
const ALL: [i32; 6] = [80, 86, 89, 90, 100, 120];
/// The oldest, and the one with instructions of its own (sm_90a).
const SOME: [i32; 2] = [80, 90];

#[test]
fn kernels_compile_for_every_card() {
    let found = match std::env::var_os("GARDEN_NVRTC").filter(|path| !path.is_empty()) {
        Some(path) => Compiler::at(Path::new(&path)),
        None => Compiler::find(13),
    };
    let compiler = match found {
        Ok(compiler) => compiler,
        Err(unavailable) => return garden_testing::missing(&format!("NVRTC ({unavailable})")),
    };
    println!("{compiler:?}");
    let cards = if std::env::var_os("GARDEN_CARDS").is_some_and(|cards| cards == "all") { &ALL[..] } else { &SOME[..] };
    let done = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels");
    std::fs::create_dir_all(&done).unwrap();
    std::thread::scope(|scope| {
        for capability in cards {
            // Older versions do not know the newest cards.
            if *capability >= 100 && compiler.version < (12, 8) {
                garden_testing::skip(&format!("NVRTC {:?} does not know sm_{capability}", compiler.version));
                continue;
            }
            let (compiler, done) = (&compiler, &done);
            scope.spawn(move || compile_all(compiler, *capability, done));
        }
    });
    let broken = compiler.compile("broken", "__global__ void f() { nothing(); }", "sm_80").unwrap_err();
    assert!(broken.contains("nothing"), "{broken}");
}

fn compile_all(compiler: &Compiler, capability: i32, done: &Path) {
    for program in &PROGRAMS {
        let (name, Some(architecture)) = (program.name, program.architecture(capability)) else { continue };
        let source = program.source();
        let compiled = done.join(file_name(name, &source, &architecture, compiler.version));
        if compiled.exists() {
            continue;
        }
        let cubin = compiler.compile(name, &source, &architecture);
        let cubin = cubin.unwrap_or_else(|problem| panic!("{name} for {architecture}: {problem}"));
        assert!(cubin.starts_with(b"\x7fELF"), "{name} for {architecture}");
        std::fs::write(compiled, cubin).unwrap();
    }
}
