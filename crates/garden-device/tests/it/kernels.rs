//! All CUDA kernels compile for every card that is supported, without a GPU: with NVRTC of a toolkit or of a Python environment.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test ends where something is not as it should be")]

use garden_device::cuda::compiler::Compiler;
use garden_device::cuda::kernels::PROGRAMS;

/// A100, RTX 30, RTX 40, Hopper, Blackwell for servers and for desks.
const CAPABILITIES: [i32; 6] = [80, 86, 89, 90, 100, 120];

#[test]
fn kernels_compile_for_every_card() {
    let compiler = match Compiler::find(13) {
        Ok(compiler) => compiler,
        Err(unavailable) => return garden_testing::skip(&unavailable.to_string()),
    };
    println!("{compiler:?}");
    for capability in CAPABILITIES {
        // Older versions do not know the newest cards.
        if capability >= 100 && compiler.version < (12, 8) {
            garden_testing::skip(&format!("NVRTC {:?} does not know sm_{capability}", compiler.version));
            continue;
        }
        for program in &PROGRAMS {
            let (name, Some(architecture)) = (program.name, program.architecture(capability)) else { continue };
            let cubin = compiler.compile(name, &program.source(), &architecture);
            let cubin = cubin.unwrap_or_else(|problem| panic!("{name} for {architecture}: {problem}"));
            assert!(cubin.starts_with(b"\x7fELF"), "{name} for {architecture}");
        }
    }
    let broken = compiler.compile("broken", "__global__ void f() { nothing(); }", "sm_80").unwrap_err();
    assert!(broken.contains("nothing"), "{broken}");
}
