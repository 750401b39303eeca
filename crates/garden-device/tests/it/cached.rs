//! Attention over a cache gives what attention over whole segments gives, and products with few rows what those with many give.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use garden_device::{Attention, Buffer, Cpu, Device, Dtype, Heads, Purpose, Reserve, Rows, Weight, Write};

/// How far f32 may be away.
const TOLERANCE: f32 = 1e-5;

/// Numbers between -1 and 1 that look random enough.
fn values(length: usize, seed: usize) -> Vec<f32> {
    (0..length).map(|place| ((place * 7919 + seed * 104_729) as f32 * 0.618_034).sin()).collect()
}

fn real(cpu: &mut Cpu, values: &[f32]) -> Buffer {
    let buffer = cpu.buffer(Purpose::Workspace, "test", Dtype::F32, values.len()).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    cpu.upload(buffer, &bytes);
    buffer
}

fn whole(cpu: &mut Cpu, values: &[i32]) -> Buffer {
    let buffer = cpu.buffer(Purpose::Workspace, "test", Dtype::I32, values.len()).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    cpu.upload(buffer, &bytes);
    buffer
}

fn read(cpu: &mut Cpu, buffer: Buffer) -> Vec<f32> {
    let mut values = vec![0.0; buffer.length()];
    cpu.download(buffer, &mut values).unwrap();
    values
}

fn assert_near(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    let off = found.iter().zip(expected).fold(0.0_f32, |off, (a, b)| off.max((a - b).abs()));
    assert!(off < TOLERANCE, "{what}: {off:.1e}");
}

#[test]
fn attention_over_a_cache() {
    for (threads, heads, kv_heads, size, news) in
        [(1, 4, 2, 8, [1, 1, 1]), (2, 6, 1, 16, [1, 1, 1]), (2, 4, 4, 10, [5, 1, 70]), (1, 8, 2, 64, [130, 2, 1])]
    {
        let (lengths, context, mut cpu) = ([17_usize, 1, 140], 150, Cpu::new(threads));
        let news: Vec<usize> = news.iter().zip(lengths).map(|(new, length)| length.min(*new)).collect();
        cpu.reserve(Reserve { widest: 0, longest: context, head_size: size, ..Reserve::default() }).unwrap();
        let (width, key_width, tokens) = (heads * size, kv_heads * size, lengths.iter().sum::<usize>());
        let (q, k, v) = (values(tokens * width, 1), values(tokens * key_width, 2), values(tokens * key_width, 3));
        let mut starts = vec![0];
        lengths.iter().for_each(|length| starts.push(starts.last().unwrap() + *length as i32));
        let of = |buffer: Buffer, heads: usize| Heads { buffer, offset: 0, stride: heads * size, heads };
        let whole_rows = Attention {
            query: of(real(&mut cpu, &q), heads),
            key: of(real(&mut cpu, &k), kv_heads),
            value: of(real(&mut cpu, &v), kv_heads),
            head_size: size,
            cu_seqlens: whole(&mut cpu, &starts),
            segments: 3,
            longest: 257,
            is_causal: true,
        };
        let y = real(&mut cpu, &values(tokens * width, 4));
        let sums = real(&mut cpu, &vec![0.0; tokens * heads]);
        cpu.attend(&whole_rows, Rows::dense(y, width), sums);
        let all = read(&mut cpu, y);

        // The cache has rows in another order, and something else where they end.
        let rows = [2_usize, 0, 1];
        let (mut keys, mut cached) = (values(3 * context * key_width, 5), values(3 * context * key_width, 6));
        let (mut queries, mut expected, mut new_starts) = (Vec::new(), Vec::new(), vec![0]);
        for segment in 0..3 {
            let (from, to) = (starts[segment] as usize, starts[segment + 1] as usize);
            let place = rows[segment] * context * key_width;
            keys[place..place + (to - from) * key_width].copy_from_slice(&k[from * key_width..to * key_width]);
            cached[place..place + (to - from) * key_width].copy_from_slice(&v[from * key_width..to * key_width]);
            queries.extend_from_slice(&q[(to - news[segment]) * width..to * width]);
            expected.extend_from_slice(&all[(to - news[segment]) * width..to * width]);
            new_starts.push(new_starts[segment] + news[segment] as i32);
        }
        let over_cache = Attention {
            query: of(real(&mut cpu, &queries), heads),
            key: of(real(&mut cpu, &keys), kv_heads),
            value: of(real(&mut cpu, &cached), kv_heads),
            cu_seqlens: whole(&mut cpu, &new_starts),
            ..whole_rows
        };
        let firsts = whole(&mut cpu, &rows.map(|row| (row * context) as i32));
        let lengths = whole(&mut cpu, &lengths.map(|length| length as i32));
        let y = real(&mut cpu, &values(queries.len(), 7));
        cpu.attend_kv_cache(&over_cache, firsts, lengths, None, Rows::dense(y, width));
        assert_near(&read(&mut cpu, y), &expected, &format!("{heads} heads, {kv_heads} key heads of {size}, {news:?}"));
    }
}

#[test]
fn products_with_few_rows() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        for (n, k) in [(1, 1), (5, 16), (64, 33), (130, 2100), (67, 70)] {
            let mut cpu = Cpu::new(2);
            cpu.reserve(Reserve { widest: k, longest: 1, head_size: 1, ..Reserve::default() }).unwrap();
            // bf16 is the upper half of an f32, so these are the same in both.
            let weights: Vec<f32> =
                values(n * k, 1).iter().map(|value| f32::from_bits(value.to_bits() & 0xffff_0000)).collect();
            let buffer = cpu.buffer(Purpose::Weights, "test", dtype, n * k).unwrap();
            let bytes = weights.iter().flat_map(|value| value.to_le_bytes()[4 - dtype.size()..].to_vec());
            cpu.upload(buffer, &bytes.collect::<Vec<u8>>());
            let weight = Weight::plain(buffer, n, k);
            for rows in [1, 2, 3, 4, 7, 12, 13] {
                let (x, before) = (values(rows * k, 2), values(rows * n, 3));
                let (x_buffer, y) = (real(&mut cpu, &x), real(&mut cpu, &before));
                let [from, to] = [Rows::dense(x_buffer, k), Rows::dense(y, n)];
                cpu.matmul(from, &weight, to, rows, 0.5 / k as f32, Write::Add);
                let expected: Vec<f32> = (0..rows * n)
                    .map(|place| {
                        let (row, output) = (place / n, place % n);
                        let terms = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(weights[output * k + i]));
                        before[place] + (terms.sum::<f64>() * 0.5 / k as f64) as f32
                    })
                    .collect();
                assert_near(&read(&mut cpu, y), &expected, &format!("{dtype:?} [{n}, {k}], {rows} rows"));
            }
        }
    }
}
