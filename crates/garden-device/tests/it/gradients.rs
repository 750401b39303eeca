//! Every operation's backward pass against finite differences of its forward pass, on random shapes.
//!
//! With random weights c the sum of c times an operation's outputs is a function f of its inputs. Along a random direction u its
//! slope is (f(x + h u) - f(x - h u)) / 2h, and must be the gradient times u. GARDEN_SEED repeats a run.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_device::{
    AdamW, Attention, Buffer, Cpu, Device, Dtype, Heads, Moments, ParameterGroup, Purpose, Reserve, Rows, StepScalars,
    Weight, Write,
};

/// Steps of the differences: small enough for the third derivative, large enough for f32.
const STEP: f32 = 2e-3;
/// How far the slope may be off, relative to the sizes of gradient and direction.
const TOLERANCE: f64 = 4e-3;
const ROUNDS: u64 = 12;

/// Random numbers: SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    /// Between -1 and 1.
    fn value(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn values(&mut self, length: usize) -> Vec<f32> {
        (0..length).map(|_| self.value()).collect()
    }
}

/// A device with a few words for tests.
struct Bench {
    cpu: Cpu,
    random: Random,
}

impl Bench {
    fn new(round: u64) -> Bench {
        let mut cpu = Cpu::new(1 + (round % 2) as usize);
        cpu.reserve(Reserve { widest: 64, longest: 256, head_size: 32, ..Reserve::default() }).unwrap();
        Bench { cpu, random: Random(garden_testing::seed() * 1000 + round) }
    }

    fn buffer(&mut self, values: &[f32]) -> Buffer {
        let buffer = self.cpu.buffer(Purpose::Workspace, "test", Dtype::F32, values.len()).unwrap();
        self.set(buffer, values);
        buffer
    }

    fn empty(&mut self, length: usize) -> Buffer {
        // Whatever was there before must not matter.
        let values = self.random.values(length);
        self.buffer(&values)
    }

    fn zeros(&mut self, length: usize) -> Buffer {
        self.buffer(&vec![0.0; length])
    }

    fn set(&mut self, buffer: Buffer, values: &[f32]) {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.cpu.upload(buffer, &bytes);
    }

    fn whole(&mut self, values: &[i32]) -> Buffer {
        let buffer = self.cpu.buffer(Purpose::Workspace, "test", Dtype::I32, values.len()).unwrap();
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.cpu.upload(buffer, &bytes);
        buffer
    }

    fn scalars(&mut self, scalars: StepScalars) -> Buffer {
        self.whole(&scalars.words())
    }

    fn get(&mut self, buffer: Buffer) -> Vec<f32> {
        let mut values = vec![0.0; buffer.length()];
        self.cpu.download(buffer, &mut values).unwrap();
        values
    }

    /// Compares a gradient with the slope along random directions. `forward` fills `output` from `input`.
    fn check(
        &mut self,
        name: &str,
        input: Buffer,
        output: Buffer,
        weights: &[f32],
        gradient: &[f32],
        mut forward: impl FnMut(&mut Cpu),
    ) {
        let start = self.get(input);
        for _ in 0..3 {
            let direction = self.random.values(start.len());
            let mut at = |bench: &mut Bench, step: f32| {
                let moved: Vec<f32> = start.iter().zip(&direction).map(|(x, u)| x + step * u).collect();
                bench.set(input, &moved);
                forward(&mut bench.cpu);
                let made = bench.get(output);
                made.iter().zip(weights).map(|(y, c)| f64::from(*y) * f64::from(*c)).sum::<f64>()
            };
            let slope = (at(self, STEP) - at(self, -STEP)) / (2.0 * f64::from(STEP));
            let expected: f64 = gradient.iter().zip(&direction).map(|(g, u)| f64::from(*g) * f64::from(*u)).sum();
            let size = norm(gradient) * norm(&direction) / (start.len() as f64).sqrt() + 1e-3;
            assert!(
                (slope - expected).abs() < TOLERANCE * size,
                "{name}: slope {slope}, gradient {expected}, size {size}"
            );
        }
        self.set(input, &start);
        forward(&mut self.cpu);
    }
}

fn norm(values: &[f32]) -> f64 {
    values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt()
}

#[test]
fn matrix_products() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let (rows, n, k) = (bench.random.between(1, 70), bench.random.between(1, 70), bench.random.between(1, 50));
        let scale = 0.5 + bench.random.value().abs();
        let [x, w, dy] = [rows * k, n * k, rows * n].map(|length| bench.empty(length));
        let (y, dx, dw) = (bench.empty(rows * n), bench.empty(rows * k), bench.zeros(n * k));
        let weight = Weight::plain(w, n, k);
        let c = bench.get(dy);
        let of = Rows::dense;
        bench.cpu.matmul_backward(of(dy, n), &weight, of(dx, k), rows, scale, Write::Set);
        bench.cpu.weight_gradient(of(dy, n), of(x, k), &Weight::plain(dw, n, k), rows, scale);
        let (of_x, of_w) = (bench.get(dx), bench.get(dw));
        let forward = |cpu: &mut Cpu, write| cpu.matmul(of(x, k), &weight, of(y, n), rows, scale, write);
        bench.check("inputs", x, y, &c, &of_x, |cpu| forward(cpu, Write::Set));
        bench.check("weight", w, y, &c, &of_w, |cpu| forward(cpu, Write::Set));
        // Added to what is there, a second time gives twice as much.
        let once = bench.get(y);
        forward(&mut bench.cpu, Write::Add);
        let twice = bench.get(y);
        assert!(once.iter().zip(&twice).all(|(once, twice)| (2.0 * once - twice).abs() < 1e-4));
    }
}

#[test]
fn weights_of_16_bits_are_the_same_numbers() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        // More rows than a tile has.
        let (rows, n, k) = (bench.random.between(1, 20), bench.random.between(100, 400), bench.random.between(1, 64));
        let halves: Vec<u16> = (0..n * k).map(|_| (bench.random.value().to_bits() >> 16) as u16).collect();
        let wide: Vec<f32> = halves.iter().map(|half| f32::from_bits(u32::from(*half) << 16)).collect();
        let narrow = bench.cpu.buffer(Purpose::Weights, "test", Dtype::Bf16, n * k).unwrap();
        bench.cpu.upload(narrow, &halves.iter().flat_map(|half| half.to_le_bytes()).collect::<Vec<u8>>());
        let w = bench.buffer(&wide);
        let (x, dy) = (bench.empty(rows * k), bench.empty(rows * n));
        let (y, z) = (bench.empty(rows * n), bench.empty(rows * n));
        let (dx, dz) = (bench.empty(rows * k), bench.empty(rows * k));
        let of = |buffer| Weight::plain(buffer, n, k);
        let dense = Rows::dense;
        for (weight, y, dx) in [(of(w), y, dx), (of(narrow), z, dz)] {
            bench.cpu.matmul(dense(x, k), &weight, dense(y, n), rows, 1.0, Write::Set);
            bench.cpu.matmul_backward(dense(dy, n), &weight, dense(dx, k), rows, 1.0, Write::Set);
        }
        for (one, other) in [(y, z), (dx, dz)] {
            let (one, other) = (bench.get(one), bench.get(other));
            assert!(one.iter().zip(&other).all(|(a, b)| (a - b).abs() < 1e-4), "{n} x {k}");
        }
        let tokens: Vec<i32> = (0..rows).map(|_| bench.random.below(n) as i32).collect();
        let places = bench.whole(&tokens);
        let (a, b) = (bench.empty(rows * k), bench.empty(rows * k));
        bench.cpu.embed(&of(w), places, a, rows);
        bench.cpu.embed(&of(narrow), places, b, rows);
        assert_eq!(bench.get(a), bench.get(b));
    }
}

#[test]
fn norms_and_biases() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let (rows, width) = (bench.random.between(1, 40), bench.random.between(1, 50));
        let [x, w, dy] = [rows * width, width, rows * width].map(|length| bench.empty(length));
        let (y, dx, dw) = (bench.empty(rows * width), bench.empty(rows * width), bench.zeros(width));
        let c = bench.get(dy);
        let of = |buffer| Rows::dense(buffer, width);
        bench.cpu.rms_norm_backward(dy, x, w, of(dx), Some(dw), rows, 1e-2, Write::Set);
        let (of_x, of_w) = (bench.get(dx), bench.get(dw));
        bench.check("norm inputs", x, y, &c, &of_x, |cpu| cpu.rms_norm(x, w, of(y), rows, 1e-2));
        bench.check("norm weight", w, y, &c, &of_w, |cpu| cpu.rms_norm(x, w, of(y), rows, 1e-2));
        bench.cpu.rms_norm_backward(dy, x, w, of(dx), None, rows, 1e-2, Write::Add);
        let twice = bench.get(dx);
        assert!(of_x.iter().zip(&twice).all(|(once, twice)| (2.0 * once - twice).abs() < 1e-4));
        let (bias, dbias) = (bench.empty(width), bench.zeros(width));
        bench.cpu.bias_gradient(of(dy), dbias, rows);
        let of_bias = bench.get(dbias);
        bench.check("bias", bias, y, &c, &of_bias, |cpu| {
            cpu.copy(x, y);
            cpu.add_bias(y, bias, rows);
        });
    }
}

#[test]
fn activations() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let length = bench.random.between(1, 300);
        let [gate, up, dy] = [length; 3].map(|length| bench.empty(length));
        // Far out too, where the functions are nearly straight.
        let wide: Vec<f32> = bench.get(gate).iter().map(|value| 4.0 * value).collect();
        bench.set(gate, &wide);
        let [y, dgate, dup] = [length; 3].map(|length| bench.empty(length));
        let c = bench.get(dy);
        bench.cpu.copy(dy, dup);
        let of = |buffer| Rows::dense(buffer, length);
        bench.cpu.swiglu_backward(of(dup), of(gate), of(up), of(dgate), None, 1);
        let (of_gate, of_up) = (bench.get(dgate), bench.get(dup));
        bench.check("gate", gate, y, &c, &of_gate, |cpu| cpu.swiglu(of(gate), of(up), of(y), 1));
        bench.check("up", up, y, &c, &of_up, |cpu| cpu.swiglu(of(gate), of(up), of(y), 1));
        bench.cpu.gelu_backward(dy, gate, dgate);
        let of_gate = bench.get(dgate);
        bench.check("gelu", gate, y, &c, &of_gate, |cpu| cpu.gelu(gate, y));
    }
}

#[test]
fn attention_over_segments() {
    for round in 0..2 * ROUNDS {
        let mut bench = Bench::new(round);
        let (kv_heads, group, half) =
            (bench.random.between(1, 3), bench.random.between(1, 3), bench.random.between(1, 8));
        let (heads, size) = (kv_heads * group, 2 * half);
        let mut starts = vec![0];
        for _ in 0..bench.random.between(1, 4) {
            starts.push(starts[starts.len() - 1] + bench.random.between(1, 90) as i32);
        }
        let tokens = starts[starts.len() - 1] as usize;
        // Queries, keys and values side by side, with something that nobody may touch behind them.
        let stride = (heads + 2 * kv_heads) * size + 3;
        let (all, all_gradients) = (bench.empty(tokens * stride), bench.empty(tokens * stride));
        let places = bench.whole(&starts);
        let view = |buffer: Buffer| {
            let at = |offset: usize, heads: usize| Heads { buffer, offset: offset * size, stride, heads };
            [at(0, heads), at(heads, kv_heads), at(heads + kv_heads, kv_heads)]
        };
        let [query, key, value] = view(all);
        let attention = Attention {
            query,
            key,
            value,
            head_size: size,
            cu_seqlens: places,
            segments: starts.len() - 1,
            longest: tokens,
            is_causal: round % 2 == 0,
        };
        let [y, dy] = [tokens * heads * size; 2].map(|length| bench.empty(length));
        let sums = bench.empty(tokens * heads);
        let c = bench.get(dy);
        let behind =
            |values: &[f32]| values.chunks_exact(stride).map(|row| row[stride - 3..].to_vec()).collect::<Vec<_>>();
        let before = behind(&bench.get(all_gradients));
        let of = Rows::dense(y, heads * size);
        bench.cpu.attend(&attention, of, sums);
        let [dq, dk, dv] = view(all_gradients);
        bench.cpu.attend_backward(&attention, of, sums, dy, dq, dk, dv);
        let mut gradient = bench.get(all_gradients);
        assert_eq!(behind(&gradient), before);
        gradient.chunks_exact_mut(stride).for_each(|row| row[stride - 3..].fill(0.0));
        bench.check("attention", all, y, &c, &gradient, |cpu| cpu.attend(&attention, of, sums));
    }
}

#[test]
fn turning_and_turning_back() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let (rows, count, half) = (bench.random.between(1, 30), bench.random.between(1, 4), bench.random.between(1, 8));
        let stride = count * 2 * half + bench.random.below(5);
        let x = bench.empty(rows * stride);
        let heads = Heads { buffer: x, offset: 0, stride, heads: count };
        let angles = bench.random.values(rows * half);
        let cosines = bench.buffer(&angles.iter().map(|angle| (3.0 * angle).cos()).collect::<Vec<f32>>());
        let sines = bench.buffer(&angles.iter().map(|angle| (3.0 * angle).sin()).collect::<Vec<f32>>());
        let before = bench.get(x);
        bench.cpu.rotate(heads, 2 * half, cosines, sines, rows);
        let turned = bench.get(x);
        assert!((norm(&before) - norm(&turned)).abs() < 1e-4 * norm(&before));
        // A turn keeps lengths, so turning back is both its inverse and its backward pass.
        bench.cpu.rotate_backward(heads, 2 * half, cosines, sines, rows);
        assert!(bench.get(x).iter().zip(&before).all(|(x, before)| (x - before).abs() < 1e-5));
    }
}

#[test]
fn rows_by_number() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let (rows, all, width) =
            (bench.random.between(1, 30), bench.random.between(30, 50), bench.random.between(1, 20));
        let tokens: Vec<i32> = (0..rows).map(|_| bench.random.below(all) as i32).collect();
        let places = bench.whole(&tokens);
        let (w, y, dy, dw) =
            (bench.empty(all * width), bench.empty(rows * width), bench.empty(rows * width), bench.zeros(all * width));
        let of = |buffer| Weight::plain(buffer, all, width);
        let skipped = tokens[0];
        let mut c = bench.get(dy);
        bench.cpu.embed_backward(Rows::dense(dy, width), places, &of(dw), rows, &[skipped]);
        let gradient = bench.get(dw);
        for (token, c) in tokens.iter().zip(c.chunks_exact_mut(width)).filter(|(token, _)| **token == skipped) {
            assert!(gradient[*token as usize * width..][..width].iter().all(|value| *value == 0.0));
            c.fill(0.0);
        }
        bench.check("embedding", w, y, &c, &gradient, |cpu| cpu.embed(&of(w), places, y, rows));
        // Each place once: out and back again.
        let mut order: Vec<i32> = (0..all as i32).collect();
        (1..all).for_each(|index| order.swap(index, bench.random.below(index + 1)));
        let order = bench.whole(&order);
        let (out, back) = (bench.empty(all * width), bench.empty(all * width));
        let [from, to, again] = [w, out, back].map(|buffer| Rows::dense(buffer, width));
        bench.cpu.gather(from, order, to, all);
        bench.cpu.scatter(to, order, again, all);
        assert_eq!(bench.get(w), bench.get(back));
    }
}

#[test]
fn losses() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let (rows, vocabulary, scale) = (bench.random.between(1, 20), bench.random.between(2, 60), 0.3);
        let targets: Vec<i32> = (0..rows).map(|_| bench.random.below(vocabulary) as i32).collect();
        let targets = bench.whole(&targets);
        let [logits, work] = [rows * vocabulary; 2].map(|length| bench.empty(length));
        let [losses, hits] = [rows; 2].map(|rows| bench.empty(rows));
        let scalars = bench.scalars(StepScalars { loss_scale: scale, ..StepScalars::default() });
        bench.cpu.copy(logits, work);
        bench.cpu.cross_entropy(work, targets, losses, hits, rows, scalars);
        let gradient = bench.get(work);
        bench.check("loss", logits, losses, &vec![scale; rows], &gradient, |cpu| {
            cpu.copy(logits, work);
            cpu.cross_entropy(work, targets, losses, hits, rows, scalars);
        });
        // Large logits are no trouble.
        bench.set(logits, &vec![3e4; rows * vocabulary]);
        bench.cpu.cross_entropy(logits, targets, losses, hits, rows, scalars);
        assert!(bench.get(losses).iter().all(|loss| (loss - (vocabulary as f32).ln()).abs() < 1e-3));
    }
}

#[test]
fn updates() {
    for round in 0..ROUNDS {
        let mut bench = Bench::new(round);
        let length = bench.random.between(1, 100_000);
        let [value, gradient, first, second] = [length; 4].map(|length| bench.empty(length));
        let squared: Vec<f32> = bench.get(second).iter().map(|value| value * value).collect();
        bench.set(second, &squared);
        let squares = bench.zeros(1);
        bench.cpu.add_squares(gradient, squares);
        let (p, g, m, v) = (bench.get(value), bench.get(gradient), bench.get(first), bench.get(second));
        let sum = f64::from(bench.get(squares)[0]);
        assert!((sum - norm(&g).powi(2)).abs() < 1e-5 * sum);
        let update = AdamW {
            value,
            gradient,
            shadow: None,
            moments: Moments::F32 { first, second },
            beta1: 0.9,
            beta2: 0.99,
            epsilon: 1e-6,
            decay: 0.1,
            scalars: bench.scalars(StepScalars { rate: 0.01, updates: [0, 3], ..StepScalars::default() }),
            group: ParameterGroup(1),
        };
        bench.cpu.adamw(&[update], Some((squares, 0.5)));
        let shrink = (0.5 / (sum.sqrt() + 1e-6)).min(1.0);
        for (index, got) in bench.get(value).iter().enumerate() {
            let g = f64::from(g[index]) * shrink;
            let m = 0.9 * f64::from(m[index]) + 0.1 * g;
            let v = 0.99 * f64::from(v[index]) + 0.01 * g * g;
            let step = 0.01 / (1.0 - 0.9_f64.powi(3)) * m / ((v / (1.0 - 0.99_f64.powi(3))).sqrt() + 1e-6);
            let expected = f64::from(p[index]) * (1.0 - 0.01 * 0.1) - step;
            assert!((f64::from(*got) - expected).abs() < 1e-5 * expected.abs().max(0.1), "{got} instead of {expected}");
        }
    }
}

/// Few segments and key heads are cut otherwise where there are more threads than those.
#[test]
fn attention_has_the_same_bits_on_any_number_of_threads() {
    for (lengths, heads, kv_heads, is_causal) in
        [(vec![130], 4, 1, true), (vec![70, 1, 33], 6, 2, true), (vec![97, 64], 3, 3, false), (vec![31], 2, 2, true)]
    {
        let run = |threads: usize| {
            let mut bench = Bench::new(5);
            bench.cpu = Cpu::new(threads);
            bench.cpu.reserve(Reserve { longest: 256, ..Reserve::default() }).unwrap();
            let (size, tokens) = (16, lengths.iter().sum::<i32>() as usize);
            let starts: Vec<i32> = std::iter::once(0)
                .chain(lengths.iter().scan(0, |end, length| {
                    *end += length;
                    Some(*end)
                }))
                .collect();
            let cu_seqlens = bench.whole(&starts);
            let [query, dq] = [heads; 2].map(|heads| Heads {
                buffer: bench.empty(tokens * heads * size),
                offset: 0,
                stride: heads * size,
                heads,
            });
            let [key, value, dk, dv] = [kv_heads; 4].map(|heads| Heads {
                buffer: bench.empty(tokens * heads * size),
                offset: 0,
                stride: heads * size,
                heads,
            });
            let (segments, longest) = (lengths.len(), 130);
            let attention = Attention { query, key, value, head_size: size, cu_seqlens, segments, longest, is_causal };
            let [y, dy] = [tokens * heads * size; 2].map(|length| bench.empty(length));
            let lse = bench.empty(tokens * heads);
            let rows = Rows::dense(y, heads * size);
            bench.cpu.attend(&attention, rows, lse);
            bench.cpu.attend_backward(&attention, rows, lse, dy, dq, dk, dv);
            let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
            [y, dq.buffer, dk.buffer, dv.buffer].map(|buffer| bits(bench.get(buffer)))
        };
        let one = run(1);
        assert!([2, 5, 16].into_iter().all(|threads| run(threads) == one), "{lengths:?}");
    }
}

#[test]
fn the_same_bits_every_time() {
    let run = || {
        let mut bench = Bench::new(1);
        let (x, w) = (bench.empty(257 * 64), bench.empty(300 * 64));
        let y = bench.empty(257 * 300);
        let weight = Weight::plain(w, 300, 64);
        bench.cpu.matmul(Rows::dense(x, 64), &weight, Rows::dense(y, 300), 257, 1.0, Write::Set);
        let places = bench.whole(&[0, 100, 257]);
        let view = Heads { buffer: x, offset: 0, stride: 64, heads: 2 };
        let attention = Attention {
            query: view,
            key: view,
            value: view,
            head_size: 32,
            cu_seqlens: places,
            segments: 2,
            longest: 257,
            is_causal: true,
        };
        let (out, sums) = (bench.empty(257 * 64), bench.empty(257 * 2));
        bench.cpu.attend(&attention, Rows::dense(out, 64), sums);
        let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<u32>>();
        (bits(bench.get(y)), bits(bench.get(out)))
    };
    let first = run();
    assert!((0..20).all(|_| run() == first));
}

#[test]
#[should_panic(expected = "would read what it writes")]
fn overlapping_buffers_are_refused() {
    let mut bench = Bench::new(0);
    let x = bench.empty(10);
    bench.cpu.add(x.part(0, 6), x.part(4, 6));
}
