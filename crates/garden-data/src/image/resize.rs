//! Bicubic resizing with antialiasing, in the numbers of PyTorch's kernel for bytes, which torchvision uses.
//!
//! The weights of each output are computed in double precision and rounded to 16 bits, with as many bits behind the point as fit;
//! rows are resized first and rounded to bytes, then columns. Rows go through a ring of as many as one output row needs, so
//! besides the picture only those are held.

/// The sharpness of the cubic, and its reach to either side.
const SHARPNESS: f64 = -0.5;
const REACH: f64 = 2.0;
/// The most bits behind the point.
const MOST_BITS: u32 = 22;

/// The inputs and weights of each output along one side.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// First input and number of inputs.
    pub spans: Vec<(usize, usize)>,
    /// [outputs, `longest`].
    weights: Vec<i16>,
    /// The most inputs of an output.
    pub longest: usize,
    /// Bits behind the point.
    bits: u32,
}

impl Weights {
    /// Computes them anew, in the memory of the last ones.
    pub fn compute(&mut self, from: usize, to: usize) {
        let scale = from as f64 / to as f64;
        let (reach, stretch) = if scale >= 1.0 { (REACH * scale, 1.0 / scale) } else { (REACH, 1.0) };
        self.longest = reach.ceil() as usize * 2 + 1;
        self.spans.clear();
        let mut exact = vec![0.0; to * self.longest];
        for (output, row) in exact.chunks_exact_mut(self.longest).enumerate() {
            let centre = scale * (output as f64 + 0.5);
            // Truncation, as in the kernel: what is below zero becomes zero.
            let first = (centre - reach + 0.5) as usize;
            let last = ((centre + reach + 0.5) as usize).min(from);
            let count = last.saturating_sub(first).min(self.longest);
            let mut total = 0.0;
            for (place, weight) in row[..count].iter_mut().enumerate() {
                *weight = cubic(((place + first) as f64 - centre + 0.5) * stretch);
                total += *weight;
            }
            if total != 0.0 {
                row[..count].iter_mut().for_each(|weight| *weight /= total);
            }
            self.spans.push((first, count));
        }
        let largest = exact.iter().copied().fold(0.0, f64::max);
        self.bits =
            (0..MOST_BITS).find(|bits| 0.5 + largest * f64::from(1 << (bits + 1)) >= 32768.0).unwrap_or(MOST_BITS);
        let one = f64::from(1_u32 << self.bits);
        self.weights.clear();
        self.weights.extend(exact.iter().map(|weight| {
            let rounding = if *weight < 0.0 { -0.5 } else { 0.5 };
            (rounding + weight * one) as i16
        }));
    }

    fn of(&self, output: usize) -> (usize, &[i16]) {
        let (first, count) = self.spans[output];
        (first, &self.weights[output * self.longest..][..count])
    }

    /// The sum that rounding starts from.
    fn half(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Resizes a row of pixels.
    pub fn row(&self, input: &[u8], output: &mut [u8]) {
        let (pixels, _) = input.as_chunks::<3>();
        for (place, pixel) in output.as_chunks_mut::<3>().0.iter_mut().enumerate() {
            let (first, weights) = self.of(place);
            let mut sums = [self.half(); 3];
            for (weight, pixel) in weights.iter().zip(&pixels[first..]) {
                for (sum, value) in sums.iter_mut().zip(pixel) {
                    *sum += i32::from(*weight) * i32::from(*value);
                }
            }
            *pixel = sums.map(|sum| byte(sum, self.bits));
        }
    }

    /// Puts rows together to one.
    pub fn column<'a>(&self, place: usize, row: impl Fn(usize) -> &'a [u8], sums: &mut [i32], output: &mut [u8]) {
        let (first, weights) = self.of(place);
        sums.fill(self.half());
        for (number, weight) in weights.iter().enumerate() {
            for (sum, value) in sums.iter_mut().zip(row(first + number)) {
                *sum += i32::from(*weight) * i32::from(*value);
            }
        }
        for (value, sum) in output.iter_mut().zip(sums) {
            *value = byte(*sum, self.bits);
        }
    }
}

fn byte(sum: i32, bits: u32) -> u8 {
    (sum >> bits).clamp(0, 255) as u8
}

fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((SHARPNESS + 2.0) * x - (SHARPNESS + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * SHARPNESS
    } else {
        0.0
    }
}
