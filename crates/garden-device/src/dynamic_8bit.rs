//! 8-bit numbers with a scale per block: codes for values between -1 and 1 that are denser near zero.
//!
//! Both maps and both ways of finding codes match bitsandbytes, so that its files and states can be read and compared; testdata/reference explains
//! how they were determined.

use std::sync::OnceLock;

/// Values that share a scale.
pub const BLOCK: usize = 256;

/// Size of the lookup table that finds codes as bitsandbytes does on a CPU.
const TABLE: usize = 1 << 16;

/// 256 values in ascending order, and their midpoints.
#[derive(Debug)]
pub struct Map {
    /// The value of each code.
    pub values: [f32; 256],
    middles: [f32; 255],
}

impl Map {
    /// From about -1 to 1: for first moments, and for scales in double quantisation.
    pub fn signed() -> &'static Map {
        static MAP: OnceLock<Map> = OnceLock::new();
        MAP.get_or_init(|| Map::new(true))
    }

    /// From 0 to 1: for second moments.
    pub fn unsigned() -> &'static Map {
        static MAP: OnceLock<Map> = OnceLock::new();
        MAP.get_or_init(|| Map::new(false))
    }

    /// Seven decades up to 1. The lowest has one step (two if unsigned), each further one twice as many, and a code is the midpoint of a step.
    fn new(is_signed: bool) -> Map {
        let mut all = vec![0.0, 1.0];
        for decade in 0..7 {
            let steps = if is_signed { 1 << decade } else { 2 << decade };
            let power = 10.0_f64.powi(decade - 6) as f32;
            for step in 0..steps {
                let value = (edge(step, steps) + edge(step + 1, steps)) / 2.0 * power;
                all.push(value);
                if is_signed {
                    all.push(-value);
                }
            }
        }
        all.sort_by(f32::total_cmp);
        let mut values = [0.0; 256];
        values.copy_from_slice(&all);
        Map { values, middles: std::array::from_fn(|code| (values[code] + values[code + 1]) / 2.0) }
    }

    /// The nearest code of a value divided by its block's scale; of two equally near ones the lower.
    pub fn nearest(&self, value: f32) -> u8 {
        self.middles.partition_point(|middle| *middle < value) as u8
    }
}

/// The n-th of `steps` equal steps from 0.1 to 1, counted from the nearer end, with PyTorch's rounding.
fn edge(number: usize, steps: usize) -> f32 {
    let step = (1.0_f32 - 0.1) / steps as f32;
    let (from_low, from_high) = (number as f32, (steps - number) as f32);
    if number < steps.div_ceil(2) { step.mul_add(from_low, 0.1) } else { (-step).mul_add(from_high, 1.0) }
}

/// Codes for the scales of a weight, with one scale per 256 of them.
pub fn quantise(values: &[f32]) -> (Vec<u8>, Vec<f32>) {
    let (mut codes, mut scales) = (Vec::with_capacity(values.len()), Vec::new());
    for block in values.chunks(BLOCK) {
        let scale = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        scales.push(scale);
        let inverse = 1.0 / scale;
        codes.extend(block.iter().map(|value| if scale == 0.0 { 0 } else { by_table(value * inverse) }));
    }
    (codes, scales)
}

/// The code of a value between -1 and 1 by table lookup: coarser near zero than the map itself.
fn by_table(value: f32) -> u8 {
    static CODES: OnceLock<Vec<u8>> = OnceLock::new();
    let last = (TABLE - 1) as f32;
    let codes =
        CODES.get_or_init(|| (0..TABLE).map(|entry| Map::signed().nearest(-1.0 + 2.0 * entry as f32 / last)).collect());
    codes[((value.clamp(-1.0, 1.0) + 1.0) * 0.5 * last + 0.5) as usize]
}
