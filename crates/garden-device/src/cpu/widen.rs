//! 16-bit weights as f32.

use crate::buffer::Kind;

use super::wide::widest;

/// Widens values; both slices have the same length.
pub(crate) fn widen(kind: Kind, from: &[u16], to: &mut [f32]) {
    match kind {
        Kind::F16 => to.iter_mut().zip(from).for_each(|(to, from)| *to = half(*from)),
        _ => widen_bfloat(from, to),
    }
}

widest! {
    /// bfloat16 is the upper half of an f32.
    fn widen_bfloat(from: &[u16], to: &mut [f32]) {
        to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(*from) << 16));
    }
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
    fn known_values() {
        let mut wide = [0.0; 6];
        widen(Kind::F16, &[0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x3555], &mut wide);
        assert_eq!(wide, [1.0, -2.0, 65504.0, 5.960_464_5e-8, -0.0, 0.333_251_95]);
        widen(Kind::Bf16, &[0x3f80, 0xc000, 0x4049, 0, 0x7f80, 0x3eab], &mut wide);
        assert_eq!(wide[..4], [1.0, -2.0, 3.140_625, 0.0]);
    }
}
