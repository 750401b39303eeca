//! Conversion of 16-bit values to f32 and back.

use crate::buffer::Dtype;

use super::arena::ViewMut;
use crate::wide::widest;

/// Widens values; both slices have the same length.
pub(crate) fn widen(dtype: Dtype, from: &[u16], to: &mut [f32]) {
    match dtype {
        Dtype::F16 => to.iter_mut().zip(from).for_each(|(to, from)| *to = half(*from)),
        _ => widen_bfloat(from, to),
    }
}

widest! {
    /// bfloat16 is the upper half of an f32.
    fn widen_bfloat(from: &[u16], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(*from) << 16));
    }
}

/// Widens values from the bytes of a file.
pub(crate) fn widen_bytes(dtype: Dtype, bytes: &[u8], to: &mut [f32]) {
    let halves = bytes.chunks_exact(2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    match dtype {
        Dtype::F16 => to.iter_mut().zip(halves).for_each(|(to, bits)| *to = half(bits)),
        _ => to.iter_mut().zip(halves).for_each(|(to, bits)| *to = f32::from_bits(u32::from(bits) << 16)),
    }
}

/// Rounds finite values to the bytes of a file.
pub(crate) fn narrow_bytes(dtype: Dtype, values: &[f32], to: &mut [u8]) {
    let (to, _) = to.as_chunks_mut::<2>();
    match dtype {
        Dtype::F16 => {
            let pairs = to.iter_mut().zip(values);
            pairs.for_each(|(to, value)| *to = half_bits(rounded_to_f16(*value)).to_le_bytes());
        }
        _ => narrow_bfloat(values, to),
    }
}

widest! {
    fn narrow_bfloat(values: &[f32], to: &mut [[u8; 2]]) {
        for (to, value) in to.iter_mut().zip(values) {
            *to = ((rounded_to_bf16(*value).to_bits() >> 16) as u16).to_le_bytes();
        }
    }
}

/// Rounds values to a dtype, to nearest even.
pub(super) fn round(dtype: Dtype, values: &mut [f32]) {
    match dtype {
        Dtype::Bf16 => values.iter_mut().for_each(|value| *value = rounded_to_bf16(*value)),
        Dtype::F16 => values.iter_mut().for_each(|value| *value = rounded_to_f16(*value)),
        _ => {}
    }
}

/// Scales values and rounds them to bf16, each up or down by the threshold of its place ([`crate::Shadow`]); the first is at `first`.
pub(super) fn round_by_thresholds(values: &[f32], scale: f32, first: usize, to: ViewMut<'_>) {
    assert_eq!((to.dtype, to.bytes.len()), (Dtype::Bf16, 2 * values.len()), "a place for each value is needed");
    let (to, _) = to.bytes.as_chunks_mut::<2>();
    for (place, (to, value)) in to.iter_mut().zip(values).enumerate() {
        *to = rounded_by_threshold(value * scale, (first + place) as u32).to_le_bytes();
    }
}

/// The bits of a bf16: towards zero if what lies below it is less than the threshold of its place, else away from it. GPU kernels do the same.
fn rounded_by_threshold(value: f32, place: u32) -> u16 {
    if !value.is_finite() {
        return (rounded_to_bf16(value).to_bits() >> 16) as u16;
    }
    // Every bit of the place matters to the upper half.
    let mut mixed = place;
    for factor in [0x7feb_352d, 0x846c_a68b_u32] {
        mixed = (mixed ^ mixed >> 16).wrapping_mul(factor);
        mixed ^= mixed >> 15;
    }
    ((value.to_bits() + (mixed >> 16)) >> 16) as u16
}

#[inline]
fn rounded_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    // NaN stays NaN, whatever its lower bits.
    if value.is_nan() {
        return f32::from_bits(bits | 0x0040_0000);
    }
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// For finite values such as weights.
fn rounded_to_f16(value: f32) -> f32 {
    let size = value.abs();
    // Adding and subtracting a power of two leaves multiples of the spacing of half precision at this size.
    let exponent = (size.to_bits() >> 23).max(127 - 14);
    let unit = f32::from_bits((exponent + 13) << 23);
    let rounded = (size + unit) - unit;
    (if rounded > 65504.0 { f32::INFINITY } else { rounded }).copysign(value)
}

/// The bits of a value already rounded to half precision.
fn half_bits(value: f32) -> u16 {
    let (bits, size) = (value.to_bits(), value.abs());
    let sign = (bits >> 16 & 0x8000) as u16;
    // The smallest normal number is 2^-14; below it there are multiples of 2^-24.
    let rest = match size {
        _ if size < f32::from_bits((127 - 14) << 23) => (size * f32::from_bits((127 + 24) << 23)) as u16,
        _ if size.is_infinite() => 0x7c00,
        _ => ((size.to_bits() >> 13) - (112 << 10)) as u16,
    };
    sign | rest
}

fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let exponent = u32::from(bits >> 10 & 0x1f);
    let fraction = u32::from(bits & 0x3ff);
    match (exponent, fraction) {
        // Zero and subnormal numbers: fraction times 2^-24.
        (0, _) => f32::from_bits(sign | (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits()),
        (0x1f, _) => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_rounds_to_itself_and_what_lies_between_to_the_even_one() {
        for bits in 0..0x7c00_u16 {
            let (here, next) = (half(bits), half(bits + 1));
            assert_eq!(rounded_to_f16(here), here);
            assert_eq!([half_bits(here), half_bits(-here)], [bits, bits | 0x8000]);
            if bits < 0x7bff {
                let middle = (here + next) / 2.0;
                assert_eq!(rounded_to_f16(-middle), -if bits % 2 == 0 { here } else { next }, "{bits:x}");
                assert_eq!(rounded_to_f16(f32::from_bits(middle.to_bits() + 1)), next);
            }
        }
        assert_eq!(rounded_to_bf16(1.0 + 2.0_f32.powi(-8)), 1.0);
        assert_eq!(rounded_to_bf16(1.0 + 3.0 * 2.0_f32.powi(-8)), 1.0 + 2.0_f32.powi(-6));
    }

    /// What is a bf16 already stays, and changes far below the distance of two bf16 arrive on average, from either side.
    #[test]
    fn thresholds_lose_nothing_on_average() {
        let wide = |bits: u16| f64::from(f32::from_bits(u32::from(bits) << 16));
        for start in [1.0_f32, -0.0195, 0.0, 3e-5, -2.0] {
            let start = rounded_to_bf16(start);
            assert!((0..1000).all(|place| rounded_by_threshold(start, place) == (start.to_bits() >> 16) as u16));
            for change in [0.01_f32, -0.01, 0.3] {
                // Half a distance of two bf16 is 2^-8 of the value at most.
                let moved = start + start.abs().max(1e-3) * change / 256.0;
                let places = 100_000;
                let mean =
                    (0..places).map(|place| wide(rounded_by_threshold(moved, place))).sum::<f64>() / f64::from(places);
                let (asked, arrived) = (f64::from(moved) - f64::from(start), mean - f64::from(start));
                // Four standard errors of as many draws.
                let unit = f64::from(start.abs().max(moved.abs())) / 128.0;
                let spread = 4.0 * (unit * asked.abs() / f64::from(places)).sqrt();
                assert!((arrived - asked).abs() <= spread + 1e-12, "{start} + {asked}: {arrived} arrives");
            }
        }
    }

    #[test]
    fn files_round_trip() {
        let values = [1.0, -0.333_251_95, 0.0, 65504.0, 6e-8];
        for (dtype, expected) in [
            (Dtype::Bf16, [1.0, -0.333_984_38, 0.0, 65536.0, 6.007_030_6e-8]),
            (Dtype::F16, [1.0, -0.333_251_95, 0.0, 65504.0, 5.960_464_5e-8]),
            (Dtype::F32, values),
        ] {
            let (mut bytes, mut back) = (vec![0; 5 * dtype.size()], [0.0; 5]);
            dtype.narrow(&values, &mut bytes);
            dtype.widen(&bytes, &mut back);
            assert_eq!(back, expected, "{dtype:?}");
        }
        let mut bytes = [0; 4];
        Dtype::F16.narrow(&[65520.0, -1e9], &mut bytes);
        assert_eq!(bytes, [0x00, 0x7c, 0x00, 0xfc], "what is too large is infinite");
    }

    #[test]
    fn known_values() {
        let mut wide = [0.0; 6];
        widen(Dtype::F16, &[0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x3555], &mut wide);
        assert_eq!(wide, [1.0, -2.0, 65504.0, 5.960_464_5e-8, -0.0, 0.333_251_95]);
        widen(Dtype::Bf16, &[0x3f80, 0xc000, 0x4049, 0, 0x7f80, 0x3eab], &mut wide);
        assert_eq!(wide[..4], [1.0, -2.0, 3.140_625, 0.0]);
    }
}
