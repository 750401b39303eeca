//! A steady step takes no memory: it allocates next to nothing, and faults next to no pages. Measured in a process of its own.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]
#![allow(clippy::print_stdout, reason = "figures for whoever runs it with --nocapture")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::case::find;
use garden_device::{Attention, Buffer, Cpu, Device, Dtype, Heads, Purpose, Reserve, Rows, Weight, Write};
use garden_model::{GradientCheckpointing, Optimizer};
use garden_testing::alone;

/// The system's allocator, which counts the bytes that any thread asks it for.
struct Counting;

static ASKED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: passed on to the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: passed on to the caller.
        unsafe { System.dealloc(start, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Pages that this process was given so far without reading a file.
fn faults() -> usize {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(7).unwrap().parse().unwrap()
}

/// Bytes that are asked for and pages that are faulted by one of ten rounds, after three that do not count.
fn measure(mut round: impl FnMut()) -> (usize, usize) {
    (0..3).for_each(|_| round());
    // Asking for the faults asks for memory, so that stands outside.
    let before = faults();
    let asked = ASKED.load(Ordering::Relaxed);
    (0..10).for_each(|_| round());
    let asked = ASKED.load(Ordering::Relaxed) - asked;
    (asked / 10, (faults() - before) / 10)
}

#[test]
fn steps_take_no_memory() {
    alone("steady::steps_take_no_memory", || {
        for name in ["vision_lora", "full_untied", "bfloat16"] {
            let case = find(name);
            let mut cpu = Cpu::new(2);
            let mut model = case.build(&mut cpu, GradientCheckpointing::PerLayer);
            let batch = &case.batches[0];
            let (bytes, pages) = measure(|| {
                model.begin_step(&mut cpu);
                model.learn(&mut cpu, batch, 1.0, 7).unwrap();
                model.update(&mut cpu, &Optimizer::default(), 1e-4, 0.5, true);
                model.step_result(&mut cpu).unwrap();
            });
            println!("{name}: {bytes} bytes and {pages} pages a step");
            assert!(bytes < 4096 && pages < 100, "{name}: {bytes} bytes and {pages} pages a step");
        }
    });
}

/// The same for products of a size that real models have, of which a library would pack hundreds of kilobytes.
#[test]
fn large_products_take_no_memory() {
    alone("steady::large_products_take_no_memory", || {
        let mut cpu = Cpu::new(2);
        let (rows, n, k, heads, size) = (192, 1024, 1280, 8, 128);
        cpu.reserve(Reserve { widest: k, longest: rows, head_size: size, ..Reserve::default() }).unwrap();
        let mut make = |dtype: Dtype, length: usize| cpu.buffer(Purpose::Workspace, "test", dtype, length).unwrap();
        let [x, y] = [rows * k, rows * n].map(|length| make(Dtype::F32, length));
        let weights = [Dtype::F32, Dtype::Bf16, Dtype::F16].map(|dtype| Weight::plain(make(dtype, n * k), n, k));
        let starts = make(Dtype::I32, 2);
        let [query, dq] = [(); 2].map(|()| Heads { buffer: make(Dtype::F32, rows * n), offset: 0, stride: n, heads });
        let mut keys = || Heads { buffer: make(Dtype::F32, rows * 2 * size), offset: 0, stride: 2 * size, heads: 2 };
        let [key, value, dk, dv] = [keys(), keys(), keys(), keys()];
        let [mixed, lse]: [Buffer; 2] = [rows * n, rows * heads].map(|length| make(Dtype::F32, length));
        cpu.upload(starts, &[0, rows as i32].map(i32::to_le_bytes).concat());
        let attention = Attention {
            query,
            key,
            value,
            head_size: size,
            cu_seqlens: starts,
            segments: 1,
            longest: rows,
            is_causal: true,
        };
        let [x_rows, y_rows, mixed_rows] =
            [(x, k), (y, n), (mixed, n)].map(|(buffer, width)| Rows::dense(buffer, width));
        let (bytes, pages) = measure(|| {
            for weight in &weights {
                cpu.matmul(x_rows, weight, y_rows, rows, 1.0, Write::Set);
                cpu.matmul_backward(y_rows, weight, x_rows, rows, 1e-3, Write::Set);
            }
            cpu.weight_gradient(y_rows, x_rows, &weights[0], rows, 1.0);
            cpu.attend(&attention, mixed_rows, lse);
            cpu.attend_backward(&attention, mixed_rows, lse, y, dq, dk, dv);
        });
        println!("products and attention: {bytes} bytes and {pages} pages a round");
        assert!(bytes == 0 && pages < 100, "{bytes} bytes and {pages} pages a round");
    });
}
