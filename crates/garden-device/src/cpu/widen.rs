//! 16-bit weights as f32.

use crate::buffer::Kind;

/// Widens values; both slices have the same length.
pub(crate) fn widen(kind: Kind, from: &[u16], to: &mut [f32]) {
    match kind {
        Kind::F16 => to.iter_mut().zip(from).for_each(|(to, from)| *to = half(*from)),
        // bfloat16 is the upper half of an f32.
        _ => to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(*from) << 16)),
    }
}

/// Rounds values to the nearest that a kind has, of two equally near ones to the even one.
pub(super) fn round(kind: Kind, values: &mut [f32]) {
    match kind {
        Kind::Bf16 => values.iter_mut().for_each(|value| *value = rounded_to_bf16(*value)),
        Kind::F16 => values.iter_mut().for_each(|value| *value = rounded_to_f16(*value)),
        _ => {}
    }
}

fn rounded_to_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

/// For finite values: weights.
fn rounded_to_f16(value: f32) -> f32 {
    let size = value.abs();
    // Adding and taking away a power of two leaves multiples of what half precision can tell apart at this size.
    let exponent = (size.to_bits() >> 23).max(127 - 14);
    let unit = f32::from_bits((exponent + 13) << 23);
    let rounded = (size + unit) - unit;
    (if rounded > 65504.0 { f32::INFINITY } else { rounded }).copysign(value)
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
            if bits < 0x7bff {
                let middle = (here + next) / 2.0;
                assert_eq!(rounded_to_f16(-middle), -if bits % 2 == 0 { here } else { next }, "{bits:x}");
                assert_eq!(rounded_to_f16(f32::from_bits(middle.to_bits() + 1)), next);
            }
        }
        assert_eq!(rounded_to_bf16(1.0 + 2.0_f32.powi(-8)), 1.0);
        assert_eq!(rounded_to_bf16(1.0 + 3.0 * 2.0_f32.powi(-8)), 1.0 + 2.0_f32.powi(-6));
    }

    #[test]
    fn known_values() {
        let mut wide = [0.0; 6];
        widen(Kind::F16, &[0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x3555], &mut wide);
        assert_eq!(wide, [1.0, -2.0, 65504.0, 5.960_464_5e-8, -0.0, 0.333_251_95]);
        widen(Kind::Bf16, &[0x3f80, 0xc000, 0x4049, 0, 0x7f80, 0x3eab], &mut wide);
        assert_eq!(wide[..4], [1.0, -2.0, 3.140_625, 0.0]);
    }
}
