//! The inverse cosine transform of libjpeg's `jidctint.c` (Loeffler, Ligtenberg and Moschytz, 12 multiplications), bit for bit.

use super::SIDE;

/// Bits behind the point of the constants, and bits that the first pass keeps.
const CONSTANT_BITS: u32 = 13;
const FIRST_PASS_BITS: u32 = 2;

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

/// Turns the coefficients of a block into samples; rows of samples are `stride` apart.
pub(super) fn inverse(block: &mut [i32; 64], samples: &mut [u8], stride: usize) {
    if block[1..].iter().all(|coefficient| *coefficient == 0) {
        let value = clamped(descaled(block[0] << FIRST_PASS_BITS, FIRST_PASS_BITS + 3));
        for row in samples.chunks_mut(stride).take(SIDE) {
            row[..SIDE].fill(value);
        }
        return;
    }
    columns::<{ CONSTANT_BITS - FIRST_PASS_BITS }>(block);
    for value in block.iter_mut() {
        // As the 16 bit registers do: nothing that a picture has is cut off.
        *value = (*value).clamp(i32::from(i16::MIN), i32::from(i16::MAX));
    }
    transpose(block);
    columns::<{ CONSTANT_BITS + FIRST_PASS_BITS + 3 }>(block);
    transpose(block);
    for (row, values) in samples.chunks_mut(stride).zip(block.chunks_exact(SIDE)) {
        for (sample, value) in row.iter_mut().zip(values) {
            *sample = clamped(*value);
        }
    }
}

fn descaled(value: i32, bits: u32) -> i32 {
    (value + (1 << (bits - 1))) >> bits
}

fn clamped(value: i32) -> u8 {
    (value + 128).clamp(0, 255) as u8
}

/// The transform of each column. The columns are independent, so that eight are computed at once.
fn columns<const SHIFT: u32>(block: &mut [i32; 64]) {
    for i in 0..SIDE {
        let at = |row: usize| block[row * SIDE + i];
        let z1 = (at(2) + at(6)) * F_0_541;
        let (even2, even3) = (z1 - at(6) * F_1_847, z1 + at(2) * F_0_765);
        let (even0, even1) = ((at(0) + at(4)) << CONSTANT_BITS, (at(0) - at(4)) << CONSTANT_BITS);
        let (sum0, sum3, sum1, sum2) = (even0 + even3, even0 - even3, even1 + even2, even1 - even2);

        let (odd0, odd1, odd2, odd3) = (at(7), at(5), at(3), at(1));
        let z5 = (odd0 + odd2 + odd1 + odd3) * F_1_175;
        let (z1, z2) = (-(odd0 + odd3) * F_0_899, -(odd1 + odd2) * F_2_562);
        let (z3, z4) = (z5 - (odd0 + odd2) * F_1_961, z5 - (odd1 + odd3) * F_0_390);
        let odd0 = odd0 * F_0_298 + z1 + z3;
        let odd1 = odd1 * F_2_053 + z2 + z4;
        let odd2 = odd2 * F_3_072 + z2 + z3;
        let odd3 = odd3 * F_1_501 + z1 + z4;

        block[i] = descaled(sum0 + odd3, SHIFT);
        block[7 * SIDE + i] = descaled(sum0 - odd3, SHIFT);
        block[SIDE + i] = descaled(sum1 + odd2, SHIFT);
        block[6 * SIDE + i] = descaled(sum1 - odd2, SHIFT);
        block[2 * SIDE + i] = descaled(sum2 + odd1, SHIFT);
        block[5 * SIDE + i] = descaled(sum2 - odd1, SHIFT);
        block[3 * SIDE + i] = descaled(sum3 + odd0, SHIFT);
        block[4 * SIDE + i] = descaled(sum3 - odd0, SHIFT);
    }
}

fn transpose(block: &mut [i32; 64]) {
    for row in 0..SIDE {
        for column in row + 1..SIDE {
            block.swap(row * SIDE + column, column * SIDE + row);
        }
    }
}
