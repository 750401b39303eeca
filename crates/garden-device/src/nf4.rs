//! NF4: 4-bit weights in blocks of 64 values with a scale each, and codes that suit normally distributed values.
//!
//! The scales are f32, or 8-bit codes themselves (double quantisation). Everything matches bitsandbytes bit for bit; the
//! rules are in testdata/reference.

use std::borrow::Cow;

use crate::dynamic_8bit::{self, Map};
use crate::wide::widest;

/// Values that share a scale.
pub const BLOCK: usize = 64;

/// The value of each code, to be multiplied by the block's scale.
pub const CODES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The code of zero.
const ZERO: u32 = 7;

/// Lower bound of scales in divisions.
const SMALLEST: f32 = 1e-38;

/// Midpoints between the codes.
const MIDDLES: [f32; 15] = {
    let mut middles = [0.0; 15];
    let mut code = 0;
    while code < 15 {
        middles[code] = (CODES[code] + CODES[code + 1]) / 2.0;
        code += 1;
    }
    middles
};

/// Both values of every byte: the first is in its upper half.
static PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [CODES[byte >> 4], CODES[byte & 15]];
        byte += 1;
    }
    pairs
};

/// Bytes for this many values.
pub fn packed_length(values: usize) -> usize {
    values.div_ceil(2)
}

/// Blocks for this many values.
pub fn blocks(values: usize) -> usize {
    values.div_ceil(BLOCK)
}

/// Quantises values of a tensor and appends their bytes and scales. All calls but a tensor's last pass whole blocks.
pub fn pack(values: &[f32], packed: &mut Vec<u8>, scales: &mut Vec<f32>) {
    for block in values.chunks(BLOCK) {
        let largest = block.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        let clamped = largest.max(SMALLEST);
        let mut codes = [ZERO; BLOCK];
        if block.len() == BLOCK {
            find_codes(block, 1.0 / clamped, &mut codes);
            scales.push(largest);
        } else {
            // A short last block is divided instead of multiplied, and keeps the divisor as its scale.
            let divided: Vec<f32> = block.iter().map(|value| value / clamped).collect();
            find_codes(&divided, 1.0, &mut codes);
            scales.push(clamped);
        }
        let pairs = codes.chunks_exact(2).take(packed_length(block.len()));
        packed.extend(pairs.map(|pair| (pair[0] << 4 | pair[1]) as u8));
    }
}

widest! {
    /// The code of a value is the number of midpoints below it.
    fn find_codes(values: &[f32], inverse: f32, codes: &mut [u32; BLOCK]) {
        for (code, value) in codes.iter_mut().zip(values) {
            let value = (value * inverse).clamp(-1.0, 1.0);
            *code = MIDDLES.iter().map(|middle| u32::from(value > *middle)).sum();
        }
    }
}

/// Double quantisation: block scales as 8-bit codes.
#[derive(Clone, Debug, PartialEq)]
pub struct DoubleScales {
    /// One code per block.
    pub codes: Vec<u8>,
    /// One scale per 256 codes.
    pub scales: Vec<f32>,
    /// Added to all scales.
    pub offset: f32,
}

impl DoubleScales {
    /// Quantises scales around their mean, summed in f64: PyTorch sums in another order, which now and then differs in the last bit.
    pub fn of(scales: &[f32]) -> DoubleScales {
        let sum: f64 = scales.iter().map(|scale| f64::from(*scale)).sum();
        Self::around(scales, (sum / scales.len().max(1) as f64) as f32)
    }

    /// Quantises scales around a given offset.
    pub fn around(scales: &[f32], offset: f32) -> DoubleScales {
        let apart: Vec<f32> = scales.iter().map(|scale| scale - offset).collect();
        let (codes, scales) = dynamic_8bit::quantise(&apart);
        DoubleScales { codes, scales, offset }
    }
}

/// The scales of an NF4 tensor.
#[derive(Clone, Copy, Debug)]
pub enum Scales<'a> {
    /// One per block.
    Plain(&'a [f32]),
    /// Codes, scales of 256 codes each, and the offset.
    Double(&'a [u8], &'a [f32], f32),
}

impl Scales<'_> {
    /// The scale of a block.
    fn of(&self, block: usize) -> f32 {
        match self {
            Scales::Plain(scales) => scales[block],
            Scales::Double(codes, scales, offset) => {
                Map::signed().values[usize::from(codes[block])] * scales[block / dynamic_8bit::BLOCK] + offset
            }
        }
    }

    /// The scales of all blocks.
    pub fn all(&self, blocks: usize) -> Cow<'_, [f32]> {
        match self {
            Scales::Plain(scales) => Cow::Borrowed(scales),
            Scales::Double(..) => (0..blocks).map(|block| self.of(block)).collect(),
        }
    }
}

/// Dequantises values of a tensor from the `first` on.
pub fn unpack(packed: &[u8], scales: Scales<'_>, first: usize, to: &mut [f32]) {
    let (mut at, mut rest) = (first, to);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at_mut(rest.len().min(BLOCK - at % BLOCK));
        unpack_block(packed, at, piece, scales.of(at / BLOCK));
        at += piece.len();
        rest = after;
    }
}

/// Dequantises values that share a scale.
fn unpack_block(packed: &[u8], first: usize, to: &mut [f32], scale: f32) {
    let half = |at: usize| PAIRS[usize::from(packed[at / 2])][at % 2];
    // A piece may start or end in the middle of a byte.
    let (begin, to) = to.split_at_mut(first % 2);
    begin.iter_mut().for_each(|value| *value = half(first) * scale);
    let first = first + begin.len();
    let count = to.len();
    let mut pairs = to.chunks_exact_mut(2);
    for (two, byte) in (&mut pairs).zip(&packed[first / 2..]) {
        let pair = PAIRS[usize::from(*byte)];
        two[0] = pair[0] * scale;
        two[1] = pair[1] * scale;
    }
    pairs.into_remainder().iter_mut().for_each(|value| *value = half(first + count - 1) * scale);
}
