//! The sums of resizing, vectorised.
//!
//! Along a row with AVX-512: sixteen outputs form a group, and a permutation of 64 bytes picks two adjacent inputs for each of them, which
//! are multiplied and added at once. The next two inputs are picked by the same permutation, shifted by two.

use std::arch::x86_64::*;

use super::{FILLED, Weights};
use crate::image::wide::{has_avx2, has_avx512};

/// Outputs per group.
const GROUP: usize = 16;
/// Bytes of an AVX-512 register.
const BYTES: usize = 64;
/// Bytes of an AVX2 register.
const WIDE: usize = 32;

/// Every second byte of the lower and the upper half of a register.
const LOWER: u64 = 0x0000_0000_5555_5555;
const UPPER: u64 = 0x5555_5555_0000_0000;
/// Maximum input rows of a vectorised output row: shrinking by 15.
const MOST_ROWS: usize = 64;

/// Data aligned for the cheapest register load.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Aligned<T>(T);

impl<T> Aligned<T> {
    #[target_feature(enable = "avx512f")]
    fn load(&self) -> __m512i {
        const { assert!(size_of::<T>() == BYTES) };
        // SAFETY: it fills a register.
        unsafe { _mm512_loadu_si512((&raw const self.0).cast()) }
    }
}

/// Weights of a row in the order that AVX-512 uses.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// Whether all inputs of sixteen outputs are within 64 bytes, or at least the first ones of eight.
    are_near: bool,
    is_usable: bool,
    /// First input of the lower and of the upper eight outputs; the same if all are near.
    starts: Vec<[usize; 2]>,
    /// Which two of the 64 bytes belong to each output, with gaps for their upper halves.
    patterns: Vec<Aligned<[u8; BYTES]>>,
    /// `[groups, pairs]`: two weights per output.
    weights: Vec<Aligned<[i16; 2 * GROUP]>>,
    pairs: usize,
}

impl Groups {
    pub(super) fn compute(&mut self, spans: &[(usize, usize)], weights: &[i16], stride: usize) {
        self.pairs = spans.iter().map(|(_, count)| count.div_ceil(2)).max().unwrap_or(0);
        self.is_usable = true;
        self.are_near =
            spans.chunks(GROUP).all(|group| group[group.len() - 1].0 - group[0].0 + 2 * self.pairs <= BYTES);
        self.starts.clear();
        self.patterns.clear();
        self.weights.clear();
        for (number, group) in spans.chunks(GROUP).enumerate() {
            let first = |output: usize| group[output.min(group.len() - 1)].0;
            let starts = [first(0), first(if self.are_near { 0 } else { GROUP / 2 })];
            let mut pattern = [0; BYTES];
            for output in 0..GROUP {
                let away = first(output) - starts[output / (GROUP / 2)];
                self.is_usable &= away < BYTES - 1;
                pattern[4 * output] = (away % BYTES) as u8;
                pattern[4 * output + 2] = ((away + 1) % BYTES) as u8;
            }
            self.starts.push(starts);
            self.patterns.push(Aligned(pattern));
            for pair in 0..self.pairs {
                let of = |output: usize, place: usize| {
                    if output < group.len() { weights[(number * GROUP + output) * stride + place] } else { 0 }
                };
                self.weights.push(Aligned(std::array::from_fn(|value| of(value / 2, 2 * pair + value % 2))));
            }
        }
    }
}

impl Weights {
    /// Resizes a row if the processor supports it.
    pub(super) fn row_in_vectors(&self, inputs: [&[u8]; 3], outputs: [&mut [u8]; 3]) -> bool {
        let filled = self.sides.1.next_multiple_of(GROUP);
        if has_avx512() && self.groups.is_usable && outputs.iter().all(|output| output.len() >= filled) {
            // SAFETY: the processor has these parts of AVX-512.
            unsafe { self.row_avx512(inputs, outputs) };
            return true;
        }
        if has_avx2() {
            for (input, output) in inputs.into_iter().zip(outputs) {
                // SAFETY: the processor has AVX2.
                unsafe { self.row_avx2(input, output) };
            }
            return true;
        }
        false
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    fn row_avx512(&self, inputs: [&[u8]; 3], outputs: [&mut [u8]; 3]) {
        let Groups { starts, patterns, weights, pairs, are_near, .. } = &self.groups;
        let shift = _mm_cvtsi32_si128(self.bits as i32);
        let groups = starts.iter().zip(patterns).zip(weights.chunks_exact(*pairs));
        let [red, green, blue] = outputs.map(|output| output.as_chunks_mut::<GROUP>().0.iter_mut());
        for ((((starts, pattern), weights), red), (green, blue)) in groups.zip(red).zip(green.zip(blue)) {
            let mut sums = [_mm512_set1_epi32(self.half()); 3];
            let mut pattern = pattern.load();
            if *are_near {
                let bytes = inputs.map(|input| load_some(&input[starts[0]..]));
                for weights in weights {
                    let weights = weights.load();
                    for (sum, bytes) in sums.iter_mut().zip(bytes) {
                        // Every second byte stays zero: the upper halves of the values.
                        let picked = _mm512_maskz_permutexvar_epi8(LOWER | UPPER, pattern, bytes);
                        *sum = _mm512_dpwssd_epi32(*sum, picked, weights);
                    }
                    pattern = _mm512_add_epi8(pattern, _mm512_set1_epi8(2));
                }
            } else {
                for (pair, weights) in weights.iter().enumerate() {
                    for (sum, input) in sums.iter_mut().zip(inputs) {
                        let [lower, upper] =
                            starts.map(|start| load_some(input.get(start + 2 * pair..).unwrap_or_default()));
                        let lower = _mm512_maskz_permutexvar_epi8(LOWER, pattern, lower);
                        let picked = _mm512_mask_permutexvar_epi8(lower, UPPER, pattern, upper);
                        *sum = _mm512_dpwssd_epi32(*sum, picked, weights.load());
                    }
                }
            }
            for (sum, output) in sums.into_iter().zip([red, green, blue]) {
                let values = _mm512_max_epi32(_mm512_sra_epi32(sum, shift), _mm512_setzero_si512());
                // SAFETY: a group has 16 outputs.
                unsafe { _mm_storeu_si128(output.as_mut_ptr().cast(), _mm512_cvtusepi32_epi8(values)) };
            }
        }
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn row_avx2(&self, input: &[u8], output: &mut [u8]) {
        /// Outputs computed together.
        const AT_ONCE: usize = 4;
        let shift = _mm_cvtsi32_si128(self.bits as i32);
        let half = _mm_set1_epi32(self.half());
        let mut done = 0;
        while done + AT_ONCE <= self.sides.1 {
            // Later spans start no earlier.
            if self.spans[done + AT_ONCE - 1].0 + self.stride > input.len() {
                break;
            }
            let [a, b, c, d] = [0, 1, 2, 3].map(|next| {
                let weights = &self.weights[(done + next) * self.stride..][..self.stride];
                let input = &input[self.spans[done + next].0..][..self.stride];
                let parts = weights.as_chunks::<FILLED>().0.iter().zip(input.as_chunks::<FILLED>().0);
                parts.fold(_mm256_setzero_si256(), |sum, (weights, input)| {
                    // SAFETY: there are 16 bytes, and 16 weights of two bytes.
                    let (input, weights) = unsafe {
                        let input = _mm_loadu_si128(input.as_ptr().cast());
                        (_mm256_cvtepu8_epi16(input), _mm256_loadu_si256(weights.as_ptr().cast()))
                    };
                    _mm256_add_epi32(sum, _mm256_madd_epi16(input, weights))
                })
            });
            let halves = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
            let sums = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            let values = _mm_sra_epi32(_mm_add_epi32(sums, half), shift);
            let values = _mm_packs_epi32(values, values);
            let bytes = _mm_cvtsi128_si32(_mm_packus_epi16(values, values));
            output[done..done + AT_ONCE].copy_from_slice(&bytes.to_le_bytes());
            done += AT_ONCE;
        }
        self.plain_row(input, output, done);
    }

    /// Computes one output row if the processor supports it and the rows fill whole vectors.
    pub(super) fn column_in_vectors(&self, place: usize, ring: &[u8], output: &mut [u8]) -> bool {
        let (first, weights) = self.of(place);
        let width = output.len();
        if !width.is_multiple_of(WIDE) || !(1..=MOST_ROWS).contains(&weights.len()) || !has_avx2() {
            return false;
        }
        // Rows come in pairs. An unpaired last row is paired with itself at weight 0.
        let held = ring.len() / width;
        let row = |number: usize| &ring[(first + number.min(weights.len() - 1)) % held * width..][..width];
        let mut pairs: [Pair; MOST_ROWS / 2] = [Pair { rows: [&[]; 2], weights: 0 }; MOST_ROWS / 2];
        let count = weights.len().div_ceil(2);
        for (number, (pair, weights)) in pairs.iter_mut().zip(weights.chunks(2)).enumerate() {
            let second = weights.get(1).copied().unwrap_or(0);
            pair.rows = [row(2 * number), row(2 * number + 1)];
            pair.weights = i32::from(second) << 16 | i32::from(weights[0]) & 0xffff;
        }
        if has_avx512() && width.is_multiple_of(BYTES) {
            // SAFETY: the processor has these parts of AVX-512.
            unsafe { self.column_avx512(&pairs[..count], output) };
        } else {
            // SAFETY: the processor has AVX2.
            unsafe { self.column_avx2(&pairs[..count], output) };
        }
        true
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx512vnni")]
    fn column_avx512(&self, pairs: &[Pair], output: &mut [u8]) {
        let shift = _mm_cvtsi32_si128(self.bits as i32);
        let zero = _mm512_setzero_si512();
        for (part, output) in output.as_chunks_mut::<BYTES>().0.iter_mut().enumerate() {
            let mut sums = [_mm512_set1_epi32(self.half()); 4];
            for pair in pairs {
                let [a, b] = pair.rows.map(|row| {
                    let bytes = &row[part * BYTES..][..BYTES];
                    // SAFETY: there are 64 bytes.
                    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
                });
                let weights = _mm512_set1_epi32(pair.weights);
                let (lower, upper) = (_mm512_unpacklo_epi8(a, b), _mm512_unpackhi_epi8(a, b));
                let wide = [
                    _mm512_unpacklo_epi8(lower, zero),
                    _mm512_unpackhi_epi8(lower, zero),
                    _mm512_unpacklo_epi8(upper, zero),
                    _mm512_unpackhi_epi8(upper, zero),
                ];
                for (sum, wide) in sums.iter_mut().zip(wide) {
                    *sum = _mm512_dpwssd_epi32(*sum, wide, weights);
                }
            }
            let [a, b, c, d] = sums.map(|sum| _mm512_sra_epi32(sum, shift));
            let bytes = _mm512_packus_epi16(_mm512_packs_epi32(a, b), _mm512_packs_epi32(c, d));
            // SAFETY: there are 64 bytes.
            unsafe { _mm512_storeu_si512(output.as_mut_ptr().cast(), bytes) };
        }
    }

    #[target_feature(enable = "avx2")]
    fn column_avx2(&self, pairs: &[Pair], output: &mut [u8]) {
        let shift = _mm_cvtsi32_si128(self.bits as i32);
        let zero = _mm256_setzero_si256();
        for (part, output) in output.as_chunks_mut::<WIDE>().0.iter_mut().enumerate() {
            let mut sums = [_mm256_set1_epi32(self.half()); 4];
            for pair in pairs {
                let [a, b] = pair.rows.map(|row| {
                    let bytes = &row[part * WIDE..][..WIDE];
                    // SAFETY: there are 32 bytes.
                    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
                });
                let weights = _mm256_set1_epi32(pair.weights);
                let (lower, upper) = (_mm256_unpacklo_epi8(a, b), _mm256_unpackhi_epi8(a, b));
                let wide = [
                    _mm256_unpacklo_epi8(lower, zero),
                    _mm256_unpackhi_epi8(lower, zero),
                    _mm256_unpacklo_epi8(upper, zero),
                    _mm256_unpackhi_epi8(upper, zero),
                ];
                for (sum, wide) in sums.iter_mut().zip(wide) {
                    *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(wide, weights));
                }
            }
            let [a, b, c, d] = sums.map(|sum| _mm256_sra_epi32(sum, shift));
            let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
            // SAFETY: there are 32 bytes.
            unsafe { _mm256_storeu_si256(output.as_mut_ptr().cast(), bytes) };
        }
    }
}

/// Two input rows, and their weights in the halves of a number.
#[derive(Clone, Copy)]
struct Pair<'a> {
    rows: [&'a [u8]; 2],
    weights: i32,
}

/// The first 64 bytes, zero-padded if there are fewer.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn load_some(bytes: &[u8]) -> __m512i {
    let mask = if bytes.len() >= BYTES { !0 } else { (1 << bytes.len()) - 1 };
    // SAFETY: only bytes of the slice are read.
    unsafe { _mm512_maskz_loadu_epi8(mask, bytes.as_ptr().cast()) }
}
