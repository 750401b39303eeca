//! Random values instead of values from a file.
//!
//! A sheet of random numbers is mapped repeatedly at consecutive addresses. So a tensor of any size is contiguous, as in a mapped file, and
//! all tensors together take the memory of one sheet. Tensors start at different offsets.

use std::ffi::c_void;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::ptr::{self, NonNull};

use garden_device::Dtype;
use garden_random::{SplitMix64, spread};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Size of the sheet: no matrix in the decoder of a 3B model repeats itself, and it is drawn in a moment.
const SHEET: usize = 64 << 20;
/// Alignment of mappings; no machine has larger pages.
const PAGE: usize = 64 << 10;
/// Alignment of tensors in bytes.
const STEP: usize = 64;
/// Standard deviation of matrices: `initializer_range` of the released models.
const DEVIATION: f32 = 0.02;
/// 1 in bf16.
const ONE: [u8; 2] = [0x80, 0x3f];

/// How a tensor is initialised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drawn {
    /// Matrices: random numbers around 0.
    Noise,
    /// Norms.
    Ones,
    /// Biases.
    Zeros,
}

/// A sheet of random bf16 numbers, and ones and zeros for the longest vector.
#[derive(Debug)]
pub(crate) struct Sheet {
    start: NonNull<u8>,
    /// Bytes mapped: whole repetitions of the sheet, with at least a whole tensor beyond the first.
    length: usize,
    /// Bytes of the sheet.
    period: usize,
    ones: Vec<u8>,
    zeros: Vec<u8>,
}

// SAFETY: the memory is only read, until it is dropped.
unsafe impl Send for Sheet {}
// SAFETY: as above.
unsafe impl Sync for Sheet {}

impl Sheet {
    /// Draws a sheet for tensors of at most `largest` bytes and vectors of at most `longest_vector` bytes.
    pub fn draw(largest: usize, longest_vector: usize, seed: u64) -> io::Result<Sheet> {
        let period = largest.clamp(1, SHEET).next_multiple_of(PAGE);
        let length = (period + largest).next_multiple_of(period);
        let mut file = File::from(memfd_create("random weights", MemfdFlags::CLOEXEC)?);
        file.write_all(&noise(period, seed))?;
        // SAFETY: new memory at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), length, ProtFlags::empty(), MapFlags::PRIVATE)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(|| io::Error::other("the kernel mapped nothing"))?;
        // From here on `Drop` unmaps it, whatever happens.
        let ones = ONE.repeat(longest_vector / ONE.len());
        let sheet = Sheet { start, length, period, ones, zeros: vec![0; longest_vector] };
        for first in (0..length).step_by(period) {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            // SAFETY: inside the memory just mapped, whose pages nobody uses yet.
            unsafe { mmap(sheet.start.as_ptr().add(first).cast(), period, ProtFlags::READ, flags, &file, 0)? };
        }
        Ok(sheet)
    }

    /// Offset of a tensor.
    pub fn place(&self, drawn: Drawn, name: &str, seed: u64) -> usize {
        match drawn {
            Drawn::Noise => {
                let hash = name.bytes().fold(spread(seed), |hash, byte| spread(hash ^ u64::from(byte)));
                hash as usize % (self.period / STEP) * STEP
            }
            Drawn::Ones | Drawn::Zeros => 0,
        }
    }

    /// The bytes that tensors of this kind are part of.
    pub fn bytes(&self, drawn: Drawn) -> &[u8] {
        match drawn {
            // SAFETY: `length` bytes are mapped for reading, nobody writes them, and they live as long as `self`.
            Drawn::Noise => unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) },
            Drawn::Ones => &self.ones,
            Drawn::Zeros => &self.zeros,
        }
    }

    /// Drops pages; they come back when read again.
    pub fn forget(&self, part: Range<usize>) {
        let begin = (part.start / PAGE * PAGE).min(self.length);
        let end = part.end.next_multiple_of(PAGE).min(self.length);
        // SAFETY: inside the mapping, which is of a file and only read.
        let told = unsafe { madvise(self.start.as_ptr().add(begin).cast(), end - begin, Advice::LinuxDontNeed) };
        // If the kernel ignores the advice it keeps the pages, which is harmless.
        told.unwrap_or(());
    }
}

impl Drop for Sheet {
    fn drop(&mut self) {
        // SAFETY: our own mapping, unmapped once.
        let given_back = unsafe { munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
        // Nothing can be done if the kernel refuses.
        given_back.unwrap_or(());
    }
}

/// Random bf16 numbers: sums of four uniform ones, which are nearly normal.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut drawn = vec![0; bytes];
    let mut values = [0.0_f32; 4096];
    // The variance of a uniform 16-bit number is 2^32 / 12, and the variance of a sum is the sum of variances.
    let (middle, scale) = (4 * 0xffff / 2, DEVIATION / (2_f32.powi(32) / 3.0).sqrt());
    let mut random = SplitMix64(spread(seed));
    for piece in drawn.chunks_mut(values.len() * Dtype::Bf16.size()) {
        let values = &mut values[..piece.len() / Dtype::Bf16.size()];
        for value in &mut *values {
            let bits = random.draw();
            let sum = [0, 16, 32, 48].map(|shift| (bits >> shift & 0xffff) as i32).iter().sum::<i32>();
            *value = (sum - middle) as f32 * scale;
        }
        Dtype::Bf16.narrow(values, piece);
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sheet_repeats_itself_and_survives_being_forgotten() {
        let sheet = Sheet::draw(SHEET + PAGE + 6, 10, 7).unwrap();
        assert_eq!((sheet.period, sheet.length), (SHEET, 3 * SHEET));
        let all = sheet.bytes(Drawn::Noise);
        assert_eq!(all[..PAGE], all[sheet.period..][..PAGE]);
        assert_ne!(all[..PAGE], all[PAGE..2 * PAGE]);
        let before = all[PAGE + 5..PAGE + 500].to_vec();
        sheet.forget(PAGE + 5..PAGE + 500);
        sheet.forget(0..sheet.length);
        assert_eq!(all[PAGE + 5..PAGE + 500], before);
        assert_eq!(noise(PAGE, 7)[..], all[..PAGE]);
        assert_ne!(noise(PAGE, 8)[..], all[..PAGE]);
        assert_eq!((sheet.bytes(Drawn::Ones).len(), sheet.bytes(Drawn::Zeros)), (10, &[0; 10][..]));
    }

    #[test]
    fn numbers_have_the_deviation_of_a_fresh_model() {
        let mut values = vec![0.0; 1 << 18];
        Dtype::Bf16.widen(&noise(values.len() * 2, 1), &mut values);
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let deviation = (values.iter().map(|value| value * value).sum::<f32>() / count).sqrt();
        // Five standard errors of 262,144 draws, plus rounding to bf16.
        assert!(mean.abs() < 2e-4, "{mean}");
        assert!((deviation / DEVIATION - 1.0).abs() < 0.01, "{deviation}");
    }
}
