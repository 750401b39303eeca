//! Antialiased bicubic resizing, with the exact results of PyTorch's uint8 kernel, which torchvision uses.
//!
//! The weights of each output are computed in double precision and rounded to 16 bits, with as many fractional bits as fit;
//! rows are resized first and rounded to bytes, then columns. Sums have 32 bits, so the order of their terms does not matter, and vector
//! code gives the same bytes as scalar code.

#[cfg(target_arch = "x86_64")]
mod vectors;

/// The cubic's coefficient, and its support to either side.
const SHARPNESS: f64 = -0.5;
const REACH: f64 = 2.0;
/// Maximum fractional bits.
const MOST_BITS: u32 = 22;
/// Weights of an output are zero-padded to a multiple of this.
const FILLED: usize = 16;

/// The inputs and weights of each output along one side.
#[derive(Debug, Default)]
pub(super) struct Weights {
    /// The input and output size they were computed for.
    sides: (usize, usize),
    /// First input and number of inputs.
    pub spans: Vec<(usize, usize)>,
    /// `[outputs, stride]`.
    weights: Vec<i16>,
    stride: usize,
    /// Maximum inputs per output.
    pub longest: usize,
    /// Fractional bits.
    bits: u32,
    #[cfg(target_arch = "x86_64")]
    groups: vectors::Groups,
}

impl Weights {
    /// Computes the weights, reusing memory, unless the sizes are unchanged.
    pub fn compute(&mut self, from: usize, to: usize) {
        if self.sides == (from, to) {
            return;
        }
        self.sides = (from, to);
        let scale = from as f64 / to as f64;
        let (reach, stretch) = if scale >= 1.0 { (REACH * scale, 1.0 / scale) } else { (REACH, 1.0) };
        self.longest = reach.ceil() as usize * 2 + 1;
        self.stride = self.longest.next_multiple_of(FILLED);
        self.spans.clear();
        let mut exact = vec![0.0; to * self.stride];
        for (output, row) in exact.chunks_exact_mut(self.stride).enumerate() {
            let centre = scale * (output as f64 + 0.5);
            // Truncation, as in the kernel: negative values become zero.
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
        #[cfg(target_arch = "x86_64")]
        self.groups.compute(&self.spans, &self.weights, self.stride);
    }

    fn of(&self, output: usize) -> (usize, &[i16]) {
        let (first, count) = self.spans[output];
        (first, &self.weights[output * self.stride..][..count])
    }

    /// The rounding term.
    fn half(&self) -> i32 {
        1 << (self.bits - 1)
    }

    /// Resizes a row of each channel. Outputs may be longer than the output size; the excess is unspecified.
    pub fn row(&self, inputs: [&[u8]; 3], outputs: [&mut [u8]; 3]) {
        assert!(inputs.iter().all(|input| input.len() == self.sides.0), "a row is of another size");
        let [red, green, blue] = outputs;
        #[cfg(target_arch = "x86_64")]
        if self.row_in_vectors(inputs, [red, green, blue]) {
            return;
        }
        for (input, output) in inputs.into_iter().zip([red, green, blue]) {
            self.plain_row(input, output, 0);
        }
    }

    fn plain_row(&self, input: &[u8], output: &mut [u8], start: usize) {
        for (place, value) in output[..self.sides.1].iter_mut().enumerate().skip(start) {
            let (first, weights) = self.of(place);
            let terms =
                weights.iter().zip(&input[first..]).map(|(weight, value)| i32::from(*weight) * i32::from(*value));
            *value = byte(self.half() + terms.sum::<i32>(), self.bits);
        }
    }

    /// Computes one output row from the input rows in a ring buffer.
    pub fn column(&self, place: usize, ring: &[u8], sums: &mut [i32], output: &mut [u8]) {
        #[cfg(target_arch = "x86_64")]
        if self.column_in_vectors(place, ring, output) {
            return;
        }
        self.plain_column(place, ring, sums, output);
    }

    fn plain_column(&self, place: usize, ring: &[u8], sums: &mut [i32], output: &mut [u8]) {
        let (first, weights) = self.of(place);
        let held = ring.len() / output.len();
        sums.fill(self.half());
        for (number, weight) in weights.iter().enumerate() {
            let row = &ring[(first + number) % held * output.len()..][..output.len()];
            for (sum, value) in sums.iter_mut().zip(row) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Shrinking and enlarging by many factors, with whatever this processor supports.
    #[test]
    fn vectors_give_what_plain_code_gives() {
        let mut number = 3_u64;
        let mut random = || {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (number >> 33) as u8
        };
        let mut weights = Weights::default();
        let sizes =
            [(1, 28), (7, 28), (56, 28), (100, 84), (2500, 1008), (1000, 252), (3000, 476), (4000, 280), (900, 28)];
        for (from, to) in sizes {
            weights.compute(from, to);
            let input: Vec<u8> = (0..from).map(|_| random()).collect();
            let other: Vec<u8> = input.iter().map(|value| !value).collect();
            let (mut expected, mut found) = (vec![0; to], vec![0; to.next_multiple_of(64)]);
            let (mut second, mut third) = (found.clone(), found.clone());
            weights.row([&input, &other, &other], [&mut found, &mut second, &mut third]);
            weights.plain_row(&other, &mut expected, 0);
            assert_eq!((&expected[..], &expected[..]), (&second[..to], &third[..to]), "{from} {to}");
            weights.plain_row(&input, &mut expected, 0);
            assert_eq!(expected, found[..to], "{from} {to}");
            found[..to].fill(0);
            #[cfg(target_arch = "x86_64")]
            if crate::image::wide::has_avx2() {
                // SAFETY: the processor has AVX2.
                unsafe { weights.row_avx2(&input, &mut found) };
                assert_eq!(expected, found[..to], "{from} {to}");
            }

            let ring: Vec<u8> = (0..weights.longest * 192).map(|_| random()).collect();
            let (mut expected, mut found, mut sums) = ([0; 192], [0; 192], [0; 192]);
            for place in [0, to / 2, to - 1] {
                weights.plain_column(place, &ring, &mut sums, &mut expected);
                weights.column(place, &ring, &mut sums, &mut found);
                assert_eq!(expected, found, "{from} {to} {place}");
            }
        }
    }
}
