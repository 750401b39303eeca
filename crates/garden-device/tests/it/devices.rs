//! Every operation on every device against the processor in f32, on random shapes. GARDEN_SEED gives other ones.
//!
//! `bench/mod.rs` says how far results may be apart, and why.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test ends where something is not as it should be, and says what it left out"
)]

use garden_device::cuda::MOST_RECORDINGS;

use crate::bench::{Bench, Matrix, Output, Pair, PairOfRows, Side, Stored, bits, check, download, rounded};
use garden_device::{
    AdamW, Attention, Buffer, Cpu, CpuBf16, Cuda, Device, Dtype, GROUPS, Heads, Moments, ParameterGroup, Purpose, Rows,
    Seed, Shadow, StepScalars, Weight, Write, dynamic_8bit,
};

pub fn cpu() -> Option<Box<dyn Device>> {
    Some(Box::new(Cpu::new(2)))
}

pub fn cpu_bf16() -> Option<Box<dyn Device>> {
    Some(Box::new(CpuBf16::new(2)))
}

pub fn cuda() -> Option<Box<dyn Device>> {
    match Cuda::open(0) {
        Ok(cuda) => Some(Box::new(cuda)),
        Err(unavailable) => {
            garden_testing::skip_all("operations on a GPU", &unavailable.to_string());
            None
        }
    }
}

/// Each case becomes a test of each device: `check` of the module that uses it takes both.
macro_rules! on_every_device {
    ($($case:ident),* $(,)?) => { on_every_device! { @ [cpu, cpu_bf16, cuda] ($($case),*) } };
    (@ [$($device:ident),*] $cases:tt) => { $(on_every_device! { @ $device $cases })* };
    (@ $device:ident ($($case:ident),*)) => {
        mod $device {
            $(
                #[test]
                fn $case() {
                    super::check(super::$device(), super::$case);
                }
            )*
        }
    };
}

pub(crate) use on_every_device;

on_every_device! {
    transfers,
    blocks_of_buffers,
    zeros,
    copies_casts_and_sums,
    repeated_work,
    scaled_gradients,
    products,
    products_backward,
    copies_of_rows,
    columns_of_owners,
    wide_products,
    weight_gradients,
    biases,
    norms,
    rotary_positions,
    attention,
    attention_over_windows,
    attention_with_large_heads,
    attention_over_a_cache,
    swiglu,
    gelu,
    embeddings,
    rows_by_number,
    dropout,
    losses,
    losses_of_a_large_vocabulary,
    hits_of_equal_logits,
    best_of_rows,
    sums_of_losses,
    sums_of_squares,
    updates,
    updates_with_8_bits,
}

const WRITES: [Write; 2] = [Write::Set, Write::Add];

/// Rows of few, of one block, of more than one.
const ROWS: [usize; 10] = [1, 1, 2, 3, 7, 12, 13, 64, 65, 131];

fn transfers(bench: &mut Bench) {
    let length = bench.random.between(1, 3000);
    let values = bench.random.values(length);
    let device = &mut *bench.device;
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
        let buffer = device.buffer(Purpose::Workspace, "test", dtype, length).unwrap();
        assert!(download(device, buffer).iter().all(|value| value.to_bits() == 0), "{dtype:?} begins with zeros");
        device.upload_f32(buffer, &values);
        assert_eq!(bits(&download(device, buffer)), bits(&rounded(dtype, &values)), "{dtype:?}");
        // Some of it, as bytes.
        let (first, some) = (length / 3, length - length / 3);
        let mut bytes = vec![0; some * dtype.size()];
        dtype.narrow(&vec![-2.5; some], &mut bytes);
        device.upload(buffer.part(first, some), &bytes);
        let got = download(device, buffer);
        assert!(got[first..].iter().all(|value| *value == -2.5));
        assert_eq!(bits(&got[..first]), bits(&rounded(dtype, &values[..first])));
    }
    let buffer = device.buffer(Purpose::Workspace, "test", Dtype::U8, length).unwrap();
    let bytes: Vec<u8> = (0..length).map(|index| (index * 31) as u8).collect();
    device.upload(buffer, &bytes);
    assert_eq!(device.download_bytes(buffer).unwrap(), bytes);
    device.finish().unwrap();
}

fn blocks_of_buffers(bench: &mut Bench) {
    let lengths: Vec<usize> = (0..4).map(|_| bench.random.between(1, 300)).collect();
    let values = bench.random.values(lengths[0]);
    let alignment = bench.device.profile().alignment;
    let device = &mut *bench.device;
    let before = device.plan().total();
    let block = device.open_block();
    let alone = device.buffer(Purpose::Batch, "outside", Dtype::F32, 5).unwrap();
    device.enter_block(Some(block));
    let make = |device: &mut dyn Device, dtype: Dtype, length: usize| {
        device.buffer(Purpose::Workspace, "inside", dtype, length).unwrap()
    };
    let real = make(device, Dtype::F32, lengths[0]);
    let whole = make(device, Dtype::I32, lengths[1]);
    let narrow = make(device, Dtype::Bf16, lengths[2]);
    let bytes = make(device, Dtype::U8, lengths[3]);
    device.branch_block(block);
    let over = make(device, Dtype::F32, 1);
    device.enter_block(None);
    let all = device.close_block(block, Dtype::U8).unwrap();
    let sizes = [real, whole, narrow, bytes].map(|buffer| buffer.length() * buffer.dtype().size());
    let starts: Vec<usize> = sizes
        .iter()
        .scan(0, |end, size| Some(std::mem::replace(end, (*end + size).next_multiple_of(alignment))))
        .collect();
    assert_eq!(all.length(), starts[3] + sizes[3].next_multiple_of(alignment));
    assert_eq!(device.plan().total() - before, all.length() + 20_usize.next_multiple_of(alignment));
    assert!(device.download_bytes(all).unwrap().iter().all(|byte| *byte == 0));
    device.upload_f32(alone, &[9.0; 5]);
    device.upload_f32(real, &values);
    let numbers: Vec<u8> = (0..lengths[1]).flat_map(|index| (index as i32 * -70_001).to_le_bytes()).collect();
    device.upload(whole, &numbers);
    device.upload_f32(narrow, &vec![1.5; lengths[2]]);
    device.upload(bytes, &vec![200; lengths[3]]);
    let got = device.download_bytes(all).unwrap();
    let mut expected = vec![0; all.length()];
    Dtype::F32.narrow(&values, &mut expected[..sizes[0]]);
    expected[starts[1]..][..sizes[1]].copy_from_slice(&numbers);
    Dtype::Bf16.narrow(&vec![1.5; lengths[2]], &mut expected[starts[2]..][..sizes[2]]);
    expected[starts[3]..][..sizes[3]].fill(200);
    assert!(got == expected, "{lengths:?}");
    // What lies over others has their bits, and one operation fills all of them.
    assert_eq!(bits(&download(device, over)), bits(&values[..1]));
    device.zero(all);
    assert!(download(device, real).iter().chain(&download(device, narrow)).all(|value| value.to_bits() == 0));
    assert_eq!(download(device, alone), [9.0; 5]);
}

fn zeros(bench: &mut Bench) {
    let length = bench.random.between(1, 5000);
    let activations = bench.some(length);
    let real = bench.some_f32(length);
    let bytes = bench.u8(&vec![7; length]);
    for pair in [activations, real] {
        bench.run("zero", &[Output::exact(pair)], |device, side| device.zero(pair.on(side)));
    }
    bench.run_unchecked("zero", &[Output::exact(bytes)], |device, side| device.zero(bytes.on(side)));
    assert!(bench.got_bytes(bytes).iter().all(|byte| *byte == 0));
    // Those of other dtypes as bytes of a block.
    for dtype in [Dtype::Bf16, Dtype::F16, Dtype::I32] {
        let device = &mut *bench.device;
        let block = device.open_block();
        device.enter_block(Some(block));
        let [first, second] = [0, 1].map(|_| device.buffer(Purpose::Workspace, "test", dtype, length).unwrap());
        device.enter_block(None);
        let all = device.close_block(block, Dtype::U8).unwrap();
        device.upload(all, &vec![7; all.length()]);
        device.zero(first);
        let (size, got) = (length * dtype.size(), device.download_bytes(all).unwrap());
        assert!(got[..size].iter().all(|byte| *byte == 0), "{dtype:?}");
        assert!(got[size..].iter().all(|byte| *byte == 7), "{dtype:?}");
        assert_eq!(second.length(), length);
    }
}

fn copies_casts_and_sums(bench: &mut Bench) {
    let length = bench.random.between(1, 5000);
    let (x, y) = (bench.some(length), bench.unfilled(length));
    bench.run("copy", &[Output::exact(y)], |device, side| device.copy(x.on(side), y.on(side)));
    let sum = bench.some(length);
    bench.run("add", &[Output::values(sum)], |device, side| device.add(x.on(side), sum.on(side)));
    let (wide, back, narrow) = (bench.some_f32(length), bench.unfilled_f32(length), bench.unfilled(length));
    bench.run("cast", &[Output::exact(narrow)], |device, side| device.cast(wide.on(side), narrow.on(side)));
    bench.align(narrow);
    bench.run("cast", &[Output::exact(back)], |device, side| device.cast(narrow.on(side), back.on(side)));
    // Every floating point to every other; halfway between two, the even one.
    let mut given = bench.random.values(length);
    given.extend([0.0, -0.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, -1.0 - 1.0 / 2048.0, 1e-30, 300.0, 6e-5, 1e-7]);
    let all = [Dtype::F32, Dtype::Bf16, Dtype::F16];
    for (from, to) in all.iter().flat_map(|from| all.map(|to| (*from, to))) {
        let device = &mut *bench.device;
        let [x, y] = [from, to].map(|dtype| device.buffer(Purpose::Workspace, "test", dtype, given.len()).unwrap());
        device.upload_f32(x, &given);
        device.upload_f32(y, &vec![f32::NAN; given.len()]);
        device.cast(x, y);
        let expected = rounded(to, &rounded(from, &given));
        assert_eq!(bits(&download(device, y)), bits(&expected), "{from:?} to {to:?}");
    }
}

/// Work that a GPU records is asked for twice: done, then recorded. It goes on with whatever buffers hold by then.
fn repeated_work(bench: &mut Bench) {
    let length = bench.random.between(1, 300);
    let (x, y) = (bench.some(length), bench.activations(&vec![0.0; length]));
    let weight = bench.weight(Stored::As(bench.device.profile().activations), 8, 8, (8, 8));
    let (from, to) = (bench.some(16 * 8), bench.unfilled(16 * 8));
    let (device, mut asked) = (&mut *bench.device, 0);
    for round in 1..=5 {
        device.upload_f32(x.on(Side::Tested), &vec![round as f32; length]);
        device.repeat(x.on(Side::Tested), 7, &mut |device| {
            asked += 1;
            device.add(x.on(Side::Tested), y.on(Side::Tested));
            let (from, to) = (from.on(Side::Tested), to.on(Side::Tested));
            let [from, to] = [from, to].map(|buffer| Rows::dense(buffer, 8));
            device.matmul(from, weight.forward(Side::Tested), to, 16, 1.0, Write::Set);
        });
        let sum = (1..=round).sum::<i32>() as f32;
        assert_eq!(download(device, y.on(Side::Tested))[..length], vec![sum; length]);
    }
    // A round has buffers of its own, and so a recording; there is room for some.
    let records = device.own_memory().is_some() && bench.round < MOST_RECORDINGS;
    assert_eq!(asked, if records { 2 } else { 5 }, "a GPU records, a processor does not");
}

fn scaled_gradients(bench: &mut Bench) {
    let length = bench.random.between(1, 5000);
    let x = bench.some_f32(length);
    let scalars = bench.scalars(StepScalars { gradient_scale: 0.37, loss_scale: 5.0, ..StepScalars::default() });
    bench.run("scale", &[Output::values(x)], |device, side| device.scale(x.on(side), scalars.on(side)));
}

/// Shapes and a weight of each storage that the device takes; one that is packed has padding in half of the rounds.
fn product_cases(bench: &mut Bench) -> Vec<(usize, usize, usize, f32, Matrix, Stored)> {
    let storages = bench.storages();
    let case = |how: Stored| {
        let rows = bench.random.of(&ROWS);
        let (n, k) = (bench.random.between(1, 150), bench.random.between(1, 150));
        let stored = match bench.random.below(2) {
            0 => (n, k),
            _ => (bench.random.between(1, n), bench.random.between(1, k)),
        };
        let scale = 0.5 + bench.random.value().abs();
        (rows, n, k, scale, bench.weight(how, n, k, stored), how)
    };
    storages.into_iter().map(case).collect()
}

/// A product is rounded before it is added to what is there, which is up to 1: it may be larger by that than what is left.
fn rounded_apart(output: Output, write: Write) -> Output {
    if write == Write::Add { output.rounded(3).of_sums(1.0) } else { output }
}

fn products(bench: &mut Bench) {
    for (rows, n, k, scale, weight, how) in product_cases(bench) {
        for write in WRITES {
            let (x, y) = (bench.some_rows(rows, k), bench.written_rows(write, rows, n));
            let what = format!("[{rows}, {k}] times [{n}, {k}] {how:?} {write:?}");
            // Factors that cancel are as large as the square root of their number.
            let output = rounded_apart(Output::rows(y.pair, n).of(y).of_terms((k as f32).sqrt()), write);
            bench.run(&what, &[output], |device, side| {
                device.matmul(x.on(side), weight.forward(side), y.on(side), rows, scale, write);
            });
        }
    }
}

fn products_backward(bench: &mut Bench) {
    for (rows, n, k, scale, weight, how) in product_cases(bench) {
        for write in WRITES {
            let (dy, dx) = (bench.some_rows(rows, n), bench.written_rows(write, rows, k));
            let what = format!("[{rows}, {n}] times [{n}, {k}] {how:?} {write:?}");
            let output = rounded_apart(Output::rows(dx.pair, k).of(dx).of_terms((n as f32).sqrt()), write);
            bench.run(&what, &[output], |device, side| {
                device.matmul_backward(dy.on(side), weight.backward(side), dx.on(side), rows, scale, write);
            });
        }
    }
}

fn copies_of_rows(bench: &mut Bench) {
    let (rows, width) = (bench.random.of(&ROWS), bench.random.between(1, 300));
    let (x, y) = (bench.some_rows(rows, width), bench.unfilled_rows(rows, width));
    bench.run(&format!("[{rows}, {width}]"), &[Output::exact(y.pair).of(y)], |device, side| {
        device.copy_rows(x.on(side), y.on(side), rows);
    });
}

fn columns_of_owners(bench: &mut Bench) {
    let (rows, each, of) = (bench.random.of(&ROWS), bench.random.of(&[1, 3, 8, 16]), bench.random.between(1, 9));
    // As many times in turn as there are linears with the same inputs.
    let width = each * of * bench.random.between(1, 4);
    let owners: Vec<i32> = (0..rows).map(|_| bench.random.below(of + 1) as i32 - 1).collect();
    let (owners, x) = (bench.i32(&owners), bench.some_rows(rows, width));
    bench.run(&format!("[{rows}, {width}], {each} of {of}"), &[Output::exact(x.pair).of(x)], |device, side| {
        device.keep_own(x.on(side), owners.on(side), each, of, rows);
    });
}

/// Wider and higher than any tile.
fn wide_products(bench: &mut Bench) {
    let storages = bench.storages();
    let how = storages[bench.round % storages.len()];
    let (n, k) = bench.random.of(&[(3, 2200), (8, 2056), (390, 300), (257, 136), (321, 65)]);
    let rows = bench.random.of(&ROWS);
    let weight = bench.weight(how, n, k, (n, k));
    let (x, y) = (bench.some_rows(rows, k), bench.unfilled_rows(rows, n));
    let what = format!("[{rows}, {k}] times [{n}, {k}] {how:?}");
    bench.run(&what, &[Output::rows(y.pair, n).of(y).of_terms((k as f32).sqrt())], |device, side| {
        device.matmul(x.on(side), weight.forward(side), y.on(side), rows, 1.0, Write::Set);
    });
    let (dy, dx) = (bench.some_rows(rows, n), bench.unfilled_rows(rows, k));
    bench.run(&what, &[Output::rows(dx.pair, k).of(dx).of_terms((n as f32).sqrt())], |device, side| {
        device.matmul_backward(dy.on(side), weight.backward(side), dx.on(side), rows, 1.0, Write::Set);
    });
}

fn weight_gradients(bench: &mut Bench) {
    let (rows, n, k) = (bench.random.of(&ROWS), bench.random.between(1, 150), bench.random.between(1, 150));
    let (dy, x, gradient) = (bench.some_rows(rows, n), bench.some_rows(rows, k), bench.some_f32(n * k));
    let output = Output::rows(gradient, k).of_terms((rows as f32).sqrt());
    bench.run(&format!("[{n}, {k}] from {rows} rows"), &[output], |device, side| {
        device.weight_gradient(dy.on(side), x.on(side), &Weight::plain(gradient.on(side), n, k), rows, 0.7);
    });
}

fn biases(bench: &mut Bench) {
    let (rows, width) = (bench.random.of(&ROWS), bench.random.between(1, 400));
    let (y, bias) = (bench.some(rows * width), bench.some_f32(width));
    bench.run("bias", &[Output::values(y)], |device, side| device.add_bias(y.on(side), bias.on(side), rows));
    let (dy, gradient) = (bench.some_rows(rows, width), bench.some_f32(width));
    let output = Output::values(gradient).of_terms((rows as f32).sqrt());
    bench.run(&format!("bias gradient [{rows}, {width}]"), &[output], |device, side| {
        device.bias_gradient(dy.on(side), gradient.on(side), rows);
    });
}

fn norms(bench: &mut Bench) {
    // Widths that kernels have of their own, and any.
    let width = match bench.round % 3 {
        0 => bench.random.of(&[8, 256, 1280, 2048, 2056, 2200]),
        _ => bench.random.between(1, 700),
    };
    let rows = bench.random.of(&ROWS);
    let (x, weight, y) = (bench.some(rows * width), bench.some_f32(width), bench.unfilled_rows(rows, width));
    let what = format!("[{rows}, {width}]");
    bench.run(&what, &[Output::rows(y.pair, width).of(y)], |device, side| {
        device.rms_norm(x.on(side), weight.on(side), y.on(side), rows, 1e-6);
    });
    for (write, is_trained) in [(Write::Set, true), (Write::Add, true), (Write::Add, false)] {
        let (dy, dx) = (bench.some(rows * width), bench.written_rows(write, rows, width));
        let gradient = is_trained.then(|| bench.some_f32(width));
        // In a row of one value all that comes back cancels: w dy - x along, over the root of x^2.
        let smallest = bench.got(x).iter().fold(1.0_f32, |smallest, x| smallest.min(x.abs()));
        let terms = if width == 1 { 1.0 / (smallest * smallest + 1e-6).sqrt() } else { 1.0 };
        let mut outputs = vec![Output::rows(dx.pair, width).of(dx).of_terms(terms)];
        outputs.extend(gradient.map(|gradient| Output::values(gradient).of_terms((rows as f32).sqrt())));
        bench.run(&format!("{what} backward {write:?}"), &outputs, |device, side| {
            let gradient = gradient.map(|gradient| gradient.on(side));
            device.rms_norm_backward(
                dy.on(side),
                x.on(side),
                weight.on(side),
                dx.on(side),
                gradient,
                rows,
                1e-6,
                write,
            );
        });
    }
}

fn rotary_positions(bench: &mut Bench) {
    let (rows, heads) = (bench.random.of(&ROWS), bench.random.between(1, 5));
    let half = bench.random.of(&[1, 3, 8, 16, 32, 40, 64]);
    let (before, behind) = (bench.random.below(2) * 2 * half, bench.random.of(&[0, 3, 8]));
    let stride = before + heads * 2 * half + behind;
    let angles: Vec<f32> = bench.random.values(rows * half).iter().map(|angle| 5.0 * angle).collect();
    let cosines = bench.f32(&angles.iter().map(|angle| angle.cos()).collect::<Vec<f32>>());
    let sines = bench.f32(&angles.iter().map(|angle| angle.sin()).collect::<Vec<f32>>());
    let x = bench.some(rows * stride);
    let at = |side: Side| Heads { buffer: x.on(side), offset: before, stride, heads };
    let start = bench.got(x);
    let output = Output::rows(x, stride);
    let what = format!("[{rows}, {heads}, {}]", 2 * half);
    bench.run(&what, &[output], |device, side| {
        device.rotate(at(side), 2 * half, cosines.on(side), sines.on(side), rows);
    });
    // Beside the heads nothing changes.
    for (row, start) in bench.got(x).chunks_exact(stride).zip(start.chunks_exact(stride)) {
        assert_eq!(bits(&row[..before]), bits(&start[..before]), "{what}");
        assert_eq!(bits(&row[stride - behind..]), bits(&start[stride - behind..]), "{what}");
    }
    bench.align(x);
    bench.run(&format!("{what} backward"), &[output], |device, side| {
        device.rotate_backward(at(side), 2 * half, cosines.on(side), sines.on(side), rows);
    });
}

/// Where a projection of queries, keys and values at once has its heads.
#[derive(Clone, Copy, Debug)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    size: usize,
    stride: usize,
    is_causal: bool,
}

impl Shape {
    /// With something behind each row that nobody may touch.
    fn new(heads: usize, kv_heads: usize, size: usize, behind: usize, is_causal: bool) -> Shape {
        Shape { heads, kv_heads, size, stride: (heads + 2 * kv_heads) * size + behind, is_causal }
    }

    fn together(&self, buffer: Buffer) -> [Heads; 3] {
        let at = |first: usize, heads| Heads { buffer, offset: first * self.size, stride: self.stride, heads };
        [at(0, self.heads), at(self.heads, self.kv_heads), at(self.heads + self.kv_heads, self.kv_heads)]
    }

    fn apart(&self, buffers: [Buffer; 3]) -> [Heads; 3] {
        let at = |buffer, heads| Heads { buffer, offset: 0, stride: heads * self.size, heads };
        [at(buffers[0], self.heads), at(buffers[1], self.kv_heads), at(buffers[2], self.kv_heads)]
    }

    fn over(&self, [query, key, value]: [Heads; 3], cu_seqlens: Buffer, lengths: &[usize]) -> Attention {
        let Shape { size: head_size, is_causal, .. } = *self;
        let (segments, longest) = (lengths.len(), lengths.iter().copied().max().unwrap_or(0));
        Attention { query, key, value, head_size, cu_seqlens, segments, longest, is_causal }
    }
}

fn starts(lengths: &[usize]) -> Vec<i32> {
    let ends = lengths.iter().scan(0, |end, length| {
        *end += *length as i32;
        Some(*end)
    });
    std::iter::once(0).chain(ends).collect()
}

/// Forward and backward over segments; gradients in one buffer and in three.
fn attend(bench: &mut Bench, shape: Shape, lengths: &[usize]) {
    let Shape { heads, kv_heads, size, stride, .. } = shape;
    let (tokens, what) = (lengths.iter().sum::<usize>(), format!("{shape:?} {lengths:?}"));
    let cu_seqlens = bench.i32(&starts(lengths));
    // Large enough that some keys are seen much more than others.
    let given: Vec<f32> = bench.random.values(tokens * stride).iter().map(|value| 2.0 * value).collect();
    let all = bench.activations(&given);
    let (y, lse) = (bench.unfilled_rows(tokens, heads * size), bench.unfilled_f32(tokens * heads));
    let attention = |side: Side| shape.over(shape.together(all.on(side)), cu_seqlens.on(side), lengths);
    // Shares may be rounded before they are multiplied with values.
    let outputs = [Output::rows(y.pair, size).of(y).rounded(2).of_terms(1.0), Output::values(lse).of_terms(1.0)];
    bench.run(&what, &outputs, |device, side| device.attend(&attention(side), y.on(side), lse.on(side)));
    bench.align_rows(y);
    bench.align(lse);
    let dy = bench.some(tokens * heads * size);
    let together = bench.some(tokens * stride);
    let apart = [heads, kv_heads, kv_heads].map(|heads| bench.unfilled(tokens * heads * size));
    let before = bench.got(together);
    // Shares, and gradients of scores, may be rounded before they are multiplied. The first token of a segment sees one key, and all that
    // comes back to that score cancels: what is left is compared with the whole.
    let output = |pair: Pair| Output::all(pair).rounded(3).of_terms(1.0);
    bench.run(&format!("{what} backward, together"), &[output(together)], |device, side| {
        let [dq, dk, dv] = shape.together(together.on(side));
        device.attend_backward(&attention(side), y.on(side), lse.on(side), dy.on(side), dq, dk, dv);
    });
    bench.run(&format!("{what} backward, apart"), &apart.map(output), |device, side| {
        let [dq, dk, dv] = shape.apart(apart.map(|pair| pair.on(side)));
        device.attend_backward(&attention(side), y.on(side), lse.on(side), dy.on(side), dq, dk, dv);
    });
    let used = (heads + 2 * kv_heads) * size;
    for (row, before) in bench.got(together).chunks_exact(stride).zip(before.chunks_exact(stride)) {
        assert_eq!(bits(&row[used..]), bits(&before[used..]), "{what}: what is behind the heads was changed");
    }
}

fn attention(bench: &mut Bench) {
    let random = &mut bench.random;
    let (kv_heads, group) = (random.between(1, 3), random.between(1, 4));
    let (size, behind) = (random.between(2, 32), random.of(&[0, 3, 8]));
    let shape = Shape::new(kv_heads * group, kv_heads, size, behind, bench.round.is_multiple_of(2));
    let segments = random.between(1, 4);
    let mut lengths: Vec<usize> = (0..segments).map(|_| random.between(1, 150)).collect();
    match bench.round % 4 {
        0 => lengths.insert(random.below(segments), 0),
        1 => lengths = vec![1; 5],
        _ => lengths.push(1),
    }
    attend(bench, shape, &lengths);
}

/// Many short segments, as windows of images are, none causal.
fn attention_over_windows(bench: &mut Bench) {
    let random = &mut bench.random;
    let heads = random.between(1, 4);
    let shape = Shape::new(heads, heads, 2 * random.between(4, 16), 0, false);
    let windows = random.between(30, 60);
    let lengths: Vec<usize> = (0..windows).map(|_| random.of(&[4, 8, 16, 16, 16, 12, 1])).collect();
    attend(bench, shape, &lengths);
}

/// The sizes that large models have, with lengths around the tiles that kernels use.
fn attention_with_large_heads(bench: &mut Bench) {
    let random = &mut bench.random;
    let size = [64, 80, 128][bench.round % 3];
    let (kv_heads, group) = (random.between(1, 2), random.between(1, 3));
    let shape = Shape::new(kv_heads * group, kv_heads, size, 0, random.below(2) == 0);
    let lengths: Vec<usize> =
        (0..2).map(|_| random.of(&[1, 15, 16, 17, 63, 64, 65, 100, 127, 128, 129, 200, 256, 257, 330])).collect();
    attend(bench, shape, &lengths);
}

fn attention_over_a_cache(bench: &mut Bench) {
    let random = &mut bench.random;
    let (kv_heads, group, size) =
        (random.between(1, 3), random.between(1, 4), random.of(&[2, 7, 8, 16, 30, 64, 80, 128]));
    let (heads, context, segments) = (kv_heads * group, 220, random.between(1, 5));
    let shape = Shape::new(heads, kv_heads, size, 0, true);
    let lengths: Vec<usize> = (0..segments).map(|_| random.between(1, context)).collect();
    // A token of each row, or pieces of prompts, and a row that has ended.
    let news: Vec<usize> = match bench.round % 3 {
        0 => vec![1; segments],
        1 => lengths.iter().map(|length| random.between(1, *length)).collect(),
        _ => lengths.iter().map(|length| random.between(1, *length) * random.below(2)).collect(),
    };
    let mut places: Vec<usize> = (0..segments + 1).collect();
    (1..places.len()).for_each(|index| places.swap(index, random.below(index + 1)));
    let queries = news.iter().sum::<usize>();
    let cached = (segments + 1) * context * kv_heads * size;
    let (q, k, v) = (bench.some(queries * heads * size), bench.some(cached), bench.some(cached));
    let cu_seqlens = bench.i32(&starts(&news));
    let firsts = bench.i32(&places[..segments].iter().map(|place| (place * context) as i32).collect::<Vec<i32>>());
    let whole = bench.i32(&lengths.iter().map(|length| *length as i32).collect::<Vec<i32>>());
    let y = bench.unfilled_rows(queries, heads * size);
    // Whatever a cache has room for, rows may be shorter.
    let pieces = context.div_ceil(128) + bench.random.below(2);
    let workspace = bench.unfilled_f32(segments * heads * pieces * (size + 2));
    let what = format!("{shape:?}, the last {news:?} of {lengths:?}");
    let outputs = [Output::rows(y.pair, size).of(y).rounded(2).of_terms(1.0), Output::scratch(workspace)];
    bench.run(&what, &outputs, |device, side| {
        let given = shape.apart([q, k, v].map(|pair| pair.on(side)));
        let attention = shape.over(given, cu_seqlens.on(side), &news);
        device.attend_kv_cache(&attention, firsts.on(side), whole.on(side), Some(workspace.on(side)), y.on(side));
    });
}

/// Far out too, where functions are nearly straight or nearly nothing.
fn far_out(bench: &mut Bench, length: usize) -> Pair {
    let values: Vec<f32> = bench.random.values(length).iter().map(|value| 12.0 * value).collect();
    bench.activations(&values)
}

fn swiglu(bench: &mut Bench) {
    let (rows, width) = (bench.random.of(&ROWS), bench.random.between(1, 300));
    let length = rows * width;
    let room = if bench.device.profile().is_joined { bench.random.of(&[0, 3, 8]) } else { 0 };
    let far: Vec<f32> = bench.random.values(length).iter().map(|value| 12.0 * value).collect();
    let gate = bench.rows_with_room(&far, width, room);
    let values = bench.random.values(length);
    let (up, y) = (bench.rows_with_room(&values, width, room), bench.unfilled_rows(rows, width));
    bench.run("swiglu", &[Output::values(y.pair).of(y)], |device, side| {
        device.swiglu(gate.on(side), up.on(side), y.on(side), rows);
    });
    for is_again in [false, true] {
        let values = bench.random.values(length);
        let room = if bench.device.profile().is_joined { bench.random.of(&[0, 3, 8]) } else { 0 };
        let dy = bench.rows_with_room(&values, width, room);
        let dgate = bench.rows_with_room(&vec![f32::NAN; length], width, room);
        let again = bench.unfilled_rows(rows, width);
        // The slope of the gate is zero near -1.28, where its terms cancel.
        let mut outputs = vec![Output::values(dgate.pair).of(dgate).of_terms(1.0), Output::values(dy.pair).of(dy)];
        outputs.extend(is_again.then_some(Output::values(again.pair).of(again)));
        bench.run("swiglu backward", &outputs, |device, side| {
            let again = is_again.then_some(again.on(side));
            device.swiglu_backward(dy.on(side), gate.on(side), up.on(side), dgate.on(side), again, rows);
        });
        if is_again {
            assert_eq!(bits(&bench.got_rows(again)), bits(&bench.got_rows(y)), "what is made again has the same bits");
        }
    }
}

fn gelu(bench: &mut Bench) {
    let length = bench.random.between(1, 5000);
    let (x, y) = (far_out(bench, length), bench.unfilled(length));
    // The error function is near -1 far out, and what is left of 1 + erf(x) is as exact as that.
    bench.run("gelu", &[Output::values(y).of_terms(1.0)], |device, side| device.gelu(x.on(side), y.on(side)));
    let (dy, dx) = (bench.some(length), bench.unfilled(length));
    bench.run("gelu backward", &[Output::values(dx).of_terms(1.0)], |device, side| {
        device.gelu_backward(dy.on(side), x.on(side), dx.on(side));
    });
    bench.run("gelu backward in place", &[Output::values(dy).of_terms(1.0)], |device, side| {
        device.gelu_backward(dy.on(side), x.on(side), dy.on(side));
    });
    assert_eq!(bits(&bench.got(dy)), bits(&bench.got(dx)));
}

fn embeddings(bench: &mut Bench) {
    let (rows, width) = (bench.random.of(&ROWS), bench.random.between(1, 200));
    let vocabulary = bench.random.between(3, 90);
    let tokens: Vec<i32> = (0..rows).map(|_| bench.random.below(vocabulary) as i32).collect();
    let places = bench.i32(&tokens);
    let plain = bench.storages().into_iter().filter(|how| matches!(how, Stored::As(_)));
    for how in plain.collect::<Vec<Stored>>() {
        let (weight, y) = (bench.weight(how, vocabulary, width, (0, 0)), bench.unfilled(rows * width));
        bench.run(&format!("[{rows}, {width}] {how:?}"), &[Output::exact(y)], |device, side| {
            device.embed(weight.forward(side), places.on(side), y.on(side), rows);
        });
    }
    // Many tokens name the same row; their sums are in the order of the tokens, so all bits are known.
    for skipped in [vec![], vec![tokens[0]], vec![tokens[0], tokens[rows - 1], -1]] {
        let (dy, gradient) = (bench.some_rows(rows, width), bench.some_f32(vocabulary * width));
        bench.run(&format!("[{rows}, {width}] without {skipped:?}"), &[Output::exact(gradient)], |device, side| {
            let gradient = Weight::plain(gradient.on(side), vocabulary, width);
            device.embed_backward(dy.on(side), places.on(side), &gradient, rows, &skipped);
        });
    }
}

fn rows_by_number(bench: &mut Bench) {
    let (all, width) = (bench.random.between(1, 140), bench.random.between(1, 100));
    let rows = bench.random.between(1, all);
    let mut order: Vec<i32> = (0..all as i32).collect();
    (1..all).for_each(|index| order.swap(index, bench.random.below(index + 1)));
    let repeated: Vec<i32> = (0..rows).map(|_| bench.random.below(all) as i32).collect();
    let x = bench.some_rows(all, width);
    for places in [&order[..rows], &repeated] {
        let (places, y) = (bench.i32(places), bench.unfilled_rows(rows, width));
        bench.run("gather", &[Output::exact(y.pair).of(y)], |device, side| {
            device.gather(x.on(side), places.on(side), y.on(side), rows);
        });
    }
    let (places, given, y) = (bench.i32(&order[..rows]), bench.some_rows(rows, width), bench.some_rows(all, width));
    bench.run("scatter", &[Output::exact(y.pair).of(y)], |device, side| {
        device.scatter(given.on(side), places.on(side), y.on(side), rows);
    });
}

fn dropout(bench: &mut Bench) {
    let (rows, width) = (bench.random.of(&ROWS), bench.random.between(1, 300));
    let length = rows * width;
    let x: Vec<f32> = bench.random.values(length).iter().map(|x| x + x.signum()).collect();
    let (x, seed) = (bench.rows(&x, width), bench.random.below(usize::MAX) as u64);
    let scalars = bench.scalars(StepScalars { seed, ..StepScalars::default() });
    let number = bench.random.below(1000) as u64;
    for (rate, write) in [(0.1, Write::Set), (0.5, Write::Set), (0.3, Write::Add), (0.0, Write::Set)] {
        let y = bench.written_rows(write, rows, width);
        let output = Output::values(y.pair).of(y).of_terms(2.0 / (1.0 - rate));
        bench.run(&format!("{rate} {write:?}"), &[output], |device, side| {
            let seed = Seed { scalars: scalars.on(side), number };
            device.dropout(x.on(side), y.on(side), rows, rate, seed, write);
        });
        if write == Write::Set {
            let dropped = |values: Vec<f32>| values.iter().map(|y| *y == 0.0).collect::<Vec<bool>>();
            let (got, expected) = (dropped(bench.got_rows(y)), dropped(bench.expected(y.pair)));
            assert!(got == expected, "{rate}: another choice");
            let share = got.iter().filter(|dropped| **dropped).count() as f32 / length as f32;
            // Six standard deviations.
            let spread = 6.0 * (rate * (1.0 - rate) / length as f32).sqrt();
            assert!((share - rate).abs() <= spread, "{share} of {length} instead of {rate}");
        }
    }
}

fn cross_entropy(bench: &mut Bench, rows: usize, vocabulary: usize, size: f32, loss_scale: f32) {
    let given: Vec<f32> = bench.random.values(rows * vocabulary).iter().map(|value| size * value).collect();
    let logits = bench.activations(&given);
    let values = rounded(bench.dtype(), &given);
    let logits_of = |row: usize| &values[row * vocabulary..][..vocabulary];
    // About half of the rows ask for their largest logit: chance would hardly ever hit it.
    let targets: Vec<usize> = (0..rows)
        .map(|row| match bench.random.below(2) {
            0 => (0..vocabulary).max_by(|a, b| logits_of(row)[*a].total_cmp(&logits_of(row)[*b])).unwrap(),
            _ => bench.random.below(vocabulary),
        })
        .collect();
    let is_first_of_largest = |(row, target): (usize, &usize)| {
        let (logits, asked) = (logits_of(row), logits_of(row)[*target]);
        logits.iter().all(|logit| *logit <= asked) && logits[..*target].iter().all(|logit| *logit < asked)
    };
    let expected: Vec<f32> = targets.iter().enumerate().map(|row| f32::from(is_first_of_largest(row))).collect();
    let targets = bench.i32(&targets.iter().map(|target| *target as i32).collect::<Vec<i32>>());
    let (losses, hits) = (bench.unfilled_f32(rows), bench.unfilled_f32(rows));
    let scalars = bench.scalars(StepScalars { loss_scale, gradient_scale: 9.0, ..StepScalars::default() });
    // The gradient of the target is its share less one, and a loss the difference of two logarithms: f32 beside numbers of that size.
    let outputs =
        [Output::values(logits).of_terms(loss_scale), Output::values(losses).of_terms(1.0), Output::exact(hits)];
    bench.run(&format!("[{rows}, {vocabulary}] up to {size}"), &outputs, |device, side| {
        let [logits, targets, losses, hits, scalars] =
            [logits, targets, losses, hits, scalars].map(|pair| pair.on(side));
        device.cross_entropy(logits, targets, losses, hits, rows, scalars);
    });
    assert_eq!(bench.got(hits), expected, "[{rows}, {vocabulary}] up to {size}");
}

fn losses(bench: &mut Bench) {
    let (rows, vocabulary) = (bench.random.of(&ROWS), bench.random.between(1, 400));
    let (size, scale) = (bench.random.of(&[1.0, 10.0, 200.0, 3e4]), bench.random.of(&[1.0, 0.3, 1.0 / 64.0]));
    cross_entropy(bench, rows, vocabulary, size, scale);
}

fn losses_of_a_large_vocabulary(bench: &mut Bench) {
    let (rows, size) = (bench.random.between(1, 4), bench.random.of(&[0.1, 5.0, 80.0, 3e4]));
    cross_entropy(bench, rows, bench.random.0 as usize % 2 + 5000, size, 0.5);
}

/// The first of several largest logits is a hit, also of those that 16 bits make equal. What is no number is none, and hides no hit.
fn hits_of_equal_logits(bench: &mut Bench) {
    let width = bench.random.of(&[4, 400, 1500, 5003]);
    let places = [0, 1, 2, 3].map(|part| bench.random.between(part * width / 4, (part + 1) * width / 4 - 1));
    let equal_in_16_bits = f32::from(rounded(bench.dtype(), &[3.001]) == [3.0]);
    // The logits at these places, all others being lower; the one that is asked for; whether it is a hit.
    let cases = [
        ([2.0, 3.0, 1.0, 3.0], 0, 0.0),
        ([2.0, 3.0, 1.0, 3.0], 1, 1.0),
        ([2.0, 3.0, 1.0, 3.0], 3, 0.0),
        ([2.0, 3.0, 3.001, 1.0], 1, equal_in_16_bits),
        ([2.0, 3.0, 3.001, 1.0], 2, 1.0 - equal_in_16_bits),
        ([f32::NAN, 3.0, 1.0, 1.0], 0, 0.0),
        ([f32::NAN, 3.0, 1.0, 1.0], 1, 1.0),
    ];
    let mut given = vec![-1.0; cases.len() * width];
    for (row, (values, ..)) in given.chunks_exact_mut(width).zip(cases) {
        places.iter().zip(values).for_each(|(place, value)| row[*place] = value);
    }
    let (rows, logits) = (cases.len(), bench.activations(&given));
    let targets = bench.i32(&cases.map(|(_, asked, _)| places[asked] as i32));
    let [losses, hits] = [rows; 2].map(|rows| bench.unfilled_f32(rows));
    let scalars = bench.scalars(StepScalars { loss_scale: 1.0, ..StepScalars::default() });
    bench.run_unchecked("equal logits", &[logits, losses, hits].map(Output::scratch), |device, side| {
        let [logits, targets, losses, hits, scalars] =
            [logits, targets, losses, hits, scalars].map(|pair| pair.on(side));
        device.cross_entropy(logits, targets, losses, hits, rows, scalars);
    });
    assert_eq!(bench.got(hits), cases.map(|(.., hit)| hit), "{width} logits");
}

/// Places of the largest, exactly; of equal ones the first, and none where there is no number to choose.
fn best_of_rows(bench: &mut Bench) {
    let (rows, width) = (bench.random.between(1, 9), bench.random.of(&[1, 7, 400, 1024, 5003, 20_000]));
    let mut logits: Vec<f32> = bench.random.values(rows * width).iter().map(|value| (8.0 * value).round()).collect();
    let place = bench.random.between(0, rows * width - 1);
    logits[place] = bench.random.of(&[f32::NAN, f32::NEG_INFINITY, 1e30]);
    if bench.round == 1 {
        logits[..width].fill(f32::NAN);
    }
    let (logits, best) = (bench.activations(&logits), bench.i32(&vec![7; rows]));
    bench.run_unchecked("best", &[], |device, side| device.best_of_rows(logits.on(side), best.on(side), rows));
    assert_eq!(bench.got_bytes(best), bench.expected_bytes(best), "{rows} rows of {width}");
}

fn sums_of_losses(bench: &mut Bench) {
    let rows = bench.random.between(1, 3000);
    let losses: Vec<f32> = bench.random.values(rows).iter().map(|loss| 5.0 + 4.0 * loss).collect();
    let (losses, sums) = (bench.f32(&losses), bench.f32(&[0.5, 7.0]));
    let given: Vec<f32> = (0..rows).map(|_| bench.random.below(2) as f32).collect();
    let hits = bench.f32(&given);
    let scalars = bench.scalars(StepScalars { loss_scale: 1.0 / rows as f32, ..StepScalars::default() });
    for _ in 0..2 {
        bench.run("losses", &[Output::values(sums)], |device, side| {
            device.add_losses(losses.on(side), hits.on(side), sums.on(side), scalars.on(side));
        });
    }
    // A count, whatever the losses are scaled by.
    assert_eq!(bench.got(sums)[1], 7.0 + 2.0 * given.iter().sum::<f32>());
}

fn sums_of_squares(bench: &mut Bench) {
    let length = match bench.round {
        0 => 1,
        1 => 1_000_000,
        2 => 262_145,
        _ => bench.random.between(1, 10_000),
    };
    let (x, sum) = (bench.some_f32(length), bench.f32(&[0.25]));
    for _ in 0..2 {
        bench.run(&format!("{length} squares"), &[Output::values(sum)], |device, side| {
            device.add_squares(x.on(side), sum.on(side));
        });
    }
}

/// What all updates of a case share.
#[derive(Clone, Copy)]
struct Trained {
    value: Pair,
    shadow: Option<(PairOfRows, f32)>,
    gradient: Pair,
    squares: Pair,
    scalars: Pair,
    group: ParameterGroup,
    decay: f32,
    clip: Option<f32>,
}

impl Trained {
    fn new(bench: &mut Bench, length: usize) -> Trained {
        let has_shadow = bench.device.profile().shadow().is_some();
        Trained {
            value: bench.some_f32(length),
            shadow: has_shadow.then(|| {
                let width = if length.is_multiple_of(8) { 8 } else { length };
                let scale = bench.random.of(&[1.0, 0.25, 1.7]);
                (bench.unfilled_rows(length / width, width), scale)
            }),
            gradient: bench.some_f32(length),
            squares: bench.f32(&[0.0]),
            scalars: bench.scalars(StepScalars::default()),
            group: ParameterGroup(bench.random.of(&[0, 1])),
            decay: bench.random.of(&[0.0, 0.1]),
            clip: bench.random.of(&[None, Some(0.5), Some(1e9)]),
        }
    }

    /// New gradients, their squares and scalars.
    fn next(&self, bench: &mut Bench, step: u32) {
        let gradients = bench.random.values(self.gradient.length());
        // The other group has had another number of updates, which must not matter.
        let mut updates = [70 + step; GROUPS];
        updates[usize::from(self.group.0)] = step;
        let now = StepScalars { rate: 0.01, updates, ..StepScalars::default() };
        let words: Vec<u8> = now.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        for side in [Side::Tested, Side::Reference] {
            let device: &mut dyn Device = match side {
                Side::Tested => &mut *bench.device,
                Side::Reference => &mut bench.cpu,
            };
            device.upload_f32(self.gradient.on(side), &gradients);
            device.upload(self.scalars.on(side), &words);
            device.upload_f32(self.squares.on(side), &[0.0]);
            device.add_squares(self.gradient.on(side), self.squares.on(side));
        }
        bench.align(self.squares);
    }

    fn update(&self, device: &mut dyn Device, side: Side, moments: Moments) {
        let on = |pair: Pair| pair.on(side);
        // The reference keeps f32 alone.
        let shadow = self.shadow.filter(|_| side == Side::Tested);
        let shadow = shadow.map(|(rows, scale)| Shadow { rows: rows.on(side), scale });
        let (value, gradient, scalars) = (on(self.value), on(self.gradient), on(self.scalars));
        let (beta1, beta2, epsilon, decay, group) = (0.9, 0.99, 1e-6, self.decay, self.group);
        let update = AdamW { value, shadow, gradient, moments, beta1, beta2, epsilon, decay, scalars, group };
        device.adamw(&[update], self.clip.map(|largest| (on(self.squares), largest)));
    }

    fn outputs(&self) -> Vec<Output> {
        // A parameter's change is as large as the rate, times ten in the first steps; what is left of it may be less.
        let value = Output::values(self.value).of_terms(0.1);
        let shadow = self.shadow.map(|(rows, _)| Output::exact(rows.pair).of(rows));
        [value].into_iter().chain(shadow).collect()
    }

    /// A shadow is its master times its scale, rounded to one of the two values beside it, and no more often up than down.
    fn check(&self, bench: &mut Bench) {
        bench.compare_all("update", &self.outputs()[..1]);
        if let Some((shadow, scale)) = self.shadow {
            let (values, got) = (bench.got(self.value), bench.got_rows(shadow));
            let cpu = &mut bench.cpu;
            let [value, expected] = [Dtype::F32, Dtype::Bf16]
                .map(|dtype| cpu.buffer(Purpose::Workspace, "test", dtype, values.len()).unwrap());
            cpu.upload_f32(value, &values);
            cpu.cast_shadow(value, Shadow { rows: Rows::dense(expected, shadow.width), scale });
            let expected = download(cpu, expected);
            assert_eq!(bits(&got), bits(&expected), "a shadow is not its master, rounded as a processor does it");
            let off =
                got.iter().zip(&values).map(|(got, value)| (got - value * scale) / (value * scale).abs().max(1e-30));
            let (mean, count) = (off.clone().sum::<f32>() / values.len() as f32, values.len() as f32);
            assert!(off.clone().all(|off| off.abs() <= 1.0 / 128.0), "a shadow is further away than the next bf16");
            assert!(mean.abs() <= 5.0 / 256.0 / count.sqrt(), "shadows of {count} values are off by {mean} on average");
        }
        bench.align(self.value);
    }
}

fn updates(bench: &mut Bench) {
    let length = if bench.round == 0 { 1 } else { bench.random.between(1, 5000) };
    let trained = Trained::new(bench, length);
    let [first, second] = [0, 1].map(|_| bench.f32(&vec![0.0; length]));
    for step in 1..=4 {
        trained.next(bench, step);
        let mut outputs = trained.outputs();
        let moments = [Output::values(first).of_terms(0.1), Output::values(second).of_terms(0.01)];
        outputs.extend(moments);
        bench.run_unchecked("update", &outputs, |device, side| {
            trained.update(device, side, Moments::F32 { first: first.on(side), second: second.on(side) });
        });
        bench.compare_all("moments", &moments);
        trained.check(bench);
        [first, second].into_iter().for_each(|pair| bench.align(pair));
    }
}

/// Of codes that lie halfway between two values f32 may take the other one.
const OTHER_CODES: f32 = 1e-2;

fn updates_with_8_bits(bench: &mut Bench) {
    let length = if bench.round == 0 { 1 } else { bench.random.between(1, 5000) };
    let blocks = length.div_ceil(dynamic_8bit::BLOCK);
    let trained = Trained::new(bench, length);
    let codes = [0, 1].map(|_| bench.u8(&vec![0; length]));
    let scales = [0, 1].map(|_| bench.f32(&vec![0.0; blocks]));
    for step in 1..=4 {
        trained.next(bench, step);
        let of_scales = scales.map(Output::values);
        let outputs: Vec<Output> =
            trained.outputs().into_iter().chain(codes.map(Output::exact)).chain(of_scales).collect();
        bench.run_unchecked("update", &outputs, |device, side| {
            let [codes, scales] = [codes, scales].map(|pairs| pairs.map(|pair| pair.on(side)));
            trained.update(device, side, Moments::Int8 { codes, scales });
        });
        bench.compare_all("scales", &of_scales);
        trained.check(bench);
        for (which, codes) in codes.into_iter().enumerate() {
            let (got, expected) = (bench.got_bytes(codes), bench.expected_bytes(codes));
            let other = got.iter().zip(&expected).filter(|(got, expected)| got != expected);
            let worst = other.clone().map(|(got, expected)| got.abs_diff(*expected)).max();
            // A first moment beside zero may change its sign, which is a code further.
            assert!(worst.unwrap_or(0) <= 2, "moment {which}: a code is {worst:?} away");
            let count = other.count();
            assert!(count as f32 <= 1.0 + OTHER_CODES * length as f32, "moment {which}: {count} of {length} codes");
        }
        codes.into_iter().chain(scales).for_each(|pair| bench.align(pair));
    }
}

/// A device that fails returns the error from whatever reads, does nothing any more, and stays so.
#[test]
fn nothing_is_read_from_a_failed_device() {
    let mut device = CpuBf16::new(1);
    let mut make = |dtype| device.buffer(Purpose::Workspace, "test", dtype, 4).unwrap();
    let (x, y, bytes) = (make(Dtype::Bf16), make(Dtype::Bf16), make(Dtype::U8));
    device.upload_f32(x, &[1.0; 4]);
    // Two more operations are done; reading is none.
    device.fail_after(2);
    device.add(x, y);
    device.add(x, y);
    assert_eq!(download(&mut device, y), [2.0; 4]);
    device.finish().unwrap();
    device.add(x, y);
    let error = device.finish().unwrap_err();
    assert!(error.to_string().contains("lost"), "{error}");
    for _ in 0..2 {
        let mut to = [7.0; 4];
        assert_eq!(device.download(y, &mut to), Err(error.clone()));
        assert_eq!(to, [7.0; 4], "what was to be read was changed");
        assert_eq!(device.download_bytes(bytes), Err(error.clone()));
        // Later operations, uploads too, are taken and not done.
        device.upload_f32(x, &[5.0; 4]);
        device.zero(y);
        device.copy(x, y);
        assert_eq!(device.finish(), Err(error.clone()));
    }
}
