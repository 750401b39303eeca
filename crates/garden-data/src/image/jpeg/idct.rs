//! The inverse DCT of libjpeg's `jidctint.c` (Loeffler, Ligtenberg and Moschytz), bit for bit.
//!
//! Each output is a sum of products in 32 bits, so the order of additions does not matter: with AVX2, pairs of
//! coefficients are multiplied at once.

use super::SIDE;

/// Fractional bits of the constants, and extra bits kept by the first pass.
const CONSTANT_BITS: u32 = 13;
const FIRST_PASS_BITS: u32 = 2;
/// Right shifts of the two passes.
const FIRST: u32 = CONSTANT_BITS - FIRST_PASS_BITS;
const SECOND: u32 = CONSTANT_BITS + FIRST_PASS_BITS + 3;

const F_0_298: i32 = 2446;
const F_0_390: i32 = 3196;
const F_0_541: i32 = 4433;
const F_0_765: i32 = 6270;
const F_0_899: i32 = 7373;
const F_1_175: i32 = 9633;
const F_1_501: i32 = 12299;
const F_1_847: i32 = 15137;
const F_1_961: i32 = 16069;
const F_2_053: i32 = 16819;
const F_2_562: i32 = 20995;
const F_3_072: i32 = 25172;

/// Transforms the coefficients of a block into samples; rows of samples are `stride` apart.
#[inline(always)]
pub(super) fn inverse(block: &[i16; 64], samples: &mut [u8], stride: usize) {
    assert!(samples.len() >= 7 * stride + SIDE, "a block leaves its plane");
    #[cfg(target_arch = "x86_64")]
    if crate::image::wide::has_avx2() {
        // SAFETY: the processor has AVX2, and there is space for eight rows.
        unsafe { avx2::inverse(block, samples.as_mut_ptr(), stride) };
        return;
    }
    plain(block, samples, stride);
}

/// The samples of a block with only a DC coefficient.
#[inline(always)]
pub(super) fn even(coefficient: i16, samples: &mut [u8], stride: usize) {
    let value = clamped(descaled(i32::from(coefficient) << FIRST_PASS_BITS, FIRST_PASS_BITS + 3));
    let samples = &mut samples[..7 * stride + SIDE];
    for row in 0..SIDE {
        samples[row * stride..][..SIDE].copy_from_slice(&[value; SIDE]);
    }
}

fn plain(block: &[i16; 64], samples: &mut [u8], stride: usize) {
    let mut block = block.map(i32::from);
    columns::<FIRST>(&mut block);
    for value in &mut block {
        // Saturates like the 16-bit registers; valid pictures are not affected.
        *value = (*value).clamp(i32::from(i16::MIN), i32::from(i16::MAX));
    }
    transpose(&mut block);
    columns::<SECOND>(&mut block);
    transpose(&mut block);
    for (row, values) in samples.chunks_mut(stride).zip(block.chunks_exact(SIDE)) {
        for (sample, value) in row.iter_mut().zip(values) {
            *sample = clamped(*value);
        }
    }
}

fn descaled(value: i32, bits: u32) -> i32 {
    value.wrapping_add(1 << (bits - 1)) >> bits
}

fn clamped(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

/// Transforms each column. The columns are independent, so eight are computed at once.
fn columns<const SHIFT: u32>(block: &mut [i32; 64]) {
    for i in 0..SIDE {
        let at = |row: usize| block[row * SIDE + i];
        let z1 = (at(2) + at(6)) * F_0_541;
        let (even2, even3) = (z1 - at(6) * F_1_847, z1 + at(2) * F_0_765);
        let (even0, even1) = ((at(0) + at(4)) << CONSTANT_BITS, (at(0) - at(4)) << CONSTANT_BITS);
        let (sum0, sum3, sum1, sum2) = (even0 + even3, even0 - even3, even1 + even2, even1 - even2);

        let (odd0, odd1, odd2, odd3) = (at(7), at(5), at(3), at(1));
        let z5 = (odd0 + odd2 + odd1 + odd3).wrapping_mul(F_1_175);
        let (z1, z2) = (-(odd0 + odd3) * F_0_899, -(odd1 + odd2) * F_2_562);
        let (z3, z4) = (z5.wrapping_sub((odd0 + odd2) * F_1_961), z5.wrapping_sub((odd1 + odd3) * F_0_390));
        let odd0 = (odd0 * F_0_298 + z1).wrapping_add(z3);
        let odd1 = (odd1 * F_2_053).wrapping_add(z2).wrapping_add(z4);
        let odd2 = (odd2 * F_3_072).wrapping_add(z2).wrapping_add(z3);
        let odd3 = (odd3 * F_1_501 + z1).wrapping_add(z4);

        let pairs = [(sum0, odd3), (sum1, odd2), (sum2, odd1), (sum3, odd0)];
        for (row, (sum, odd)) in pairs.into_iter().enumerate() {
            block[row * SIDE + i] = descaled(sum.wrapping_add(odd), SHIFT);
            block[(7 - row) * SIDE + i] = descaled(sum.wrapping_sub(odd), SHIFT);
        }
    }
}

fn transpose(block: &mut [i32; 64]) {
    for row in 0..SIDE {
        for column in row + 1..SIDE {
            block.swap(row * SIDE + column, column * SIDE + row);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::*;

    /// # Safety
    /// There must be space for eight rows of eight samples.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(super) unsafe fn inverse(block: &[i16; 64], samples: *mut u8, stride: usize) {
        let row = |number: usize| {
            let half = block[number * SIDE..][..SIDE].as_ptr().cast::<__m128i>();
            // SAFETY: a row has 16 bytes.
            unsafe { _mm_loadu_si128(half) }
        };
        // Two rows, four apart, in each register.
        let both = |number: usize| _mm256_set_m128i(row(number + 4), row(number));
        let first = columns::<{ FIRST as i32 }>([both(0), both(1), both(2), both(3)]);
        let [r0, r1, r2, r3] = columns::<{ SECOND as i32 }>(transpose(first));
        let [r0, r1, r2, r3] = transpose([r0, r1, r2, r3]);
        let middle = _mm256_set1_epi8(-128);
        let upper = _mm256_xor_si256(_mm256_packs_epi16(r0, r1), middle);
        let lower = _mm256_xor_si256(_mm256_packs_epi16(r2, r3), middle);
        for (first, rows) in [(0, _mm256_castsi256_si128(upper)), (2, _mm256_castsi256_si128(lower))] {
            // SAFETY: the caller has made sure of the space.
            unsafe { store(rows, samples.add(first * stride), stride) };
        }
        for (first, rows) in [(4, _mm256_extracti128_si256::<1>(upper)), (6, _mm256_extracti128_si256::<1>(lower))] {
            // SAFETY: as above.
            unsafe { store(rows, samples.add(first * stride), stride) };
        }
    }

    /// Stores two rows.
    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store(rows: __m128i, samples: *mut u8, stride: usize) {
        // SAFETY: the caller has made sure of the space.
        unsafe {
            _mm_storel_epi64(samples.cast(), rows);
            _mm_storel_epi64(samples.add(stride).cast(), _mm_unpackhi_epi64(rows, rows));
        }
    }

    /// Transforms columns. Register `i` holds rows `i` and `i + 4`; the result has rows `2 i` and `2 i + 1`, the left four
    /// columns of both and then the right four.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn columns<const SHIFT: i32>(rows: [__m256i; 4]) -> [__m256i; 4] {
        let pattern = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
        // The two rows interleaved by column.
        let pairs = |rows: __m256i| _mm256_shuffle_epi8(_mm256_permute4x64_epi64::<0b11_01_10_00>(rows), pattern);
        let times = |pairs: __m256i, first: i32, second: i32| {
            _mm256_madd_epi16(pairs, _mm256_set1_epi32((second << 16) | (first & 0xffff)))
        };
        let [p04, p15, p26, p37] = rows.map(pairs);
        let half = _mm256_set1_epi32(1 << (SHIFT - 1));
        let even0 = _mm256_add_epi32(times(p04, 1 << CONSTANT_BITS, 1 << CONSTANT_BITS), half);
        let even1 = _mm256_add_epi32(times(p04, 1 << CONSTANT_BITS, -(1 << CONSTANT_BITS)), half);
        let even2 = times(p26, F_0_541, F_0_541 - F_1_847);
        let even3 = times(p26, F_0_541 + F_0_765, F_0_541);
        let odd = |a: i32, b: i32, c: i32, d: i32| _mm256_add_epi32(times(p15, a, b), times(p37, c, d));
        let odd0 = odd(F_1_175 - F_0_899, F_1_175, F_1_175 - F_1_961, F_0_298 - F_0_899 + F_1_175 - F_1_961);
        let odd1 = odd(F_1_175 - F_0_390, F_2_053 - F_2_562 + F_1_175 - F_0_390, F_1_175 - F_2_562, F_1_175);
        let odd2 = odd(F_1_175, F_1_175 - F_2_562, F_3_072 - F_2_562 + F_1_175 - F_1_961, F_1_175 - F_1_961);
        let odd3 = odd(F_1_501 - F_0_899 + F_1_175 - F_0_390, F_1_175 - F_0_390, F_1_175, F_1_175 - F_0_899);
        let sum0 = _mm256_add_epi32(even0, even3);
        let sum3 = _mm256_sub_epi32(even0, even3);
        let sum1 = _mm256_add_epi32(even1, even2);
        let sum2 = _mm256_sub_epi32(even1, even2);
        let plus = |sum: __m256i, odd: __m256i| _mm256_srai_epi32::<SHIFT>(_mm256_add_epi32(sum, odd));
        let minus = |sum: __m256i, odd: __m256i| _mm256_srai_epi32::<SHIFT>(_mm256_sub_epi32(sum, odd));
        [
            _mm256_packs_epi32(plus(sum0, odd3), plus(sum1, odd2)),
            _mm256_packs_epi32(plus(sum2, odd1), plus(sum3, odd0)),
            _mm256_packs_epi32(minus(sum3, odd0), minus(sum2, odd1)),
            _mm256_packs_epi32(minus(sum1, odd2), minus(sum0, odd3)),
        ]
    }

    /// Transposes: register `i` of the result has columns `i` and `i + 4` as rows.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn transpose([q0, q1, q2, q3]: [__m256i; 4]) -> [__m256i; 4] {
        let four = |a: __m256i, b: __m256i| {
            let (even, odd) = (_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b));
            (_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd))
        };
        let ((a0, a1), (b0, b1)) = (four(q0, q1), four(q2, q3));
        [
            _mm256_unpacklo_epi64(a0, b0),
            _mm256_unpackhi_epi64(a0, b0),
            _mm256_unpacklo_epi64(a1, b1),
            _mm256_unpackhi_epi64(a1, b1),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any coefficients, including ones that no picture has.
    #[test]
    fn vectors_give_what_plain_code_gives() {
        let mut number = 7_u64;
        let mut random = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) as u32
        };
        for round in 0..20_000 {
            let bits = 4 + round % 13;
            let mut block = [0_i16; 64];
            for _ in 0..random() % 64 + 1 {
                block[random() as usize % 64] = ((random() & 0xffff) as i16) >> (16 - bits);
            }
            let (mut expected, mut found) = ([0; 64 + 56], [0; 64 + 56]);
            plain(&block, &mut expected, 15);
            inverse(&block, &mut found, 15);
            assert_eq!(expected, found, "{block:?}");
            if block[1..].iter().all(|coefficient| *coefficient == 0) {
                even(block[0], &mut found, 15);
                assert_eq!(expected, found, "{block:?}");
            }
        }
    }
}
