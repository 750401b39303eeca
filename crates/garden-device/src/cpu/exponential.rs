//! e^x in a form that compilers vectorise: the C library's takes a tenth of a training step.

/// Added to a number below 2^22, it leaves the nearest integer in the lowest bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts: the first has few enough bits that its products with integers are exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// e^x to about one unit in the last place, clamped to e^-87 and e^88, where f32 ends.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    // x = n ln 2 + r with |r| <= ln 2 / 2, and e^x = 2^n e^r.
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = x - n * LN2_HIGH - n * LN2_LOW;
    // The polynomial of the Cephes library.
    let mut tail = 1.987_569_1e-4;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        tail = tail * r + coefficient;
    }
    let whole = (shifted.to_bits() as i32).wrapping_sub(ROUNDER.to_bits() as i32);
    let power = f32::from_bits(((whole + 127) << 23) as u32);
    (tail * r * r + r + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_exact_as_f32_is() {
        let mut worst = 0.0_f64;
        for step in -870_000..880_000 {
            let x = step as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - exact).abs() / exact);
        }
        assert!(worst < 2e-7, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(-1e9) < 1e-37 && exp(f32::NAN).is_nan());
    }
}
