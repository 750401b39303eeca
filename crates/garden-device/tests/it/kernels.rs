//! All CUDA kernels compile for every card that is supported, without a GPU: with NVRTC of a toolkit or of a Python environment.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test ends where something is not as it should be")]

use garden_device::cuda::compiler::Compiler;
use garden_device::cuda::kernels::PROGRAMS;

/// A100, RTX 30, RTX 40, Hopper, Blackwell for servers and for desks.
const ARCHITECTURES: [&str; 6] = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];

#[test]
fn kernels_compile_for_every_card() {
    let compiler = match Compiler::find(13) {
        Ok(compiler) => compiler,
        Err(unavailable) => return garden_testing::skip(&unavailable.to_string()),
    };
    println!("{compiler:?}");
    for architecture in ARCHITECTURES {
        // Older versions do not know the newest cards.
        if matches!(architecture, "sm_100" | "sm_120") && compiler.version < (12, 8) {
            garden_testing::skip(&format!("NVRTC {:?} does not know {architecture}", compiler.version));
            continue;
        }
        for program in &PROGRAMS {
            let name = program.name;
            let cubin = compiler.compile(name, &program.source(), architecture);
            let cubin = cubin.unwrap_or_else(|problem| panic!("{name} for {architecture}: {problem}"));
            assert!(cubin.starts_with(b"\x7fELF"), "{name} for {architecture}");
        }
    }
    let broken = compiler.compile("broken", "__global__ void f() { nothing(); }", "sm_80").unwrap_err();
    assert!(broken.contains("nothing"), "{broken}");
}
