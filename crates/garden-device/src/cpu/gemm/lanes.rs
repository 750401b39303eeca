//! Vectors of f32, one type per kind of processor, for the GEMM's kernels and packing.
//!
//! Everything here is inlined into functions compiled for that processor; nothing may be called on another.

/// A vector of values.
pub(super) trait Lanes: Copy {
    /// Number of values.
    const COUNT: usize;
    /// Maximum tile heights for one vector, for two, and so on: as many rows as leave registers for the vectors of b and one of a.
    const ROWS: &[usize];

    unsafe fn splat(value: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn store(self, to: *mut f32);
    /// Loads the first `count` values and nothing after them; the others are zeros.
    unsafe fn load_some(from: *const f32, count: usize) -> Self;
    /// Stores the first `count` values and nothing after them.
    unsafe fn store_some(self, to: *mut f32, count: usize);
    unsafe fn times(self, other: Self) -> Self;
    /// self * other + sum, rounded once if the processor can (FMA).
    unsafe fn times_plus(self, other: Self, sum: Self) -> Self;
    /// Transposes a square: `COUNT` values of each of `COUNT` lines.
    unsafe fn turn(lines: [*const f32; MOST], to: *mut f32, step: usize);
    unsafe fn prefetch(from: *const f32);
}

/// Values of the longest vector.
pub(super) const MOST: usize = 16;

/// Plain arrays for any processor, four or eight values: enough for the compiler to use vector instructions.
#[derive(Clone, Copy)]
pub(super) struct Portable([f32; PORTABLE]);

const PORTABLE: usize = if cfg!(target_arch = "aarch64") { 8 } else { 4 };

impl Lanes for Portable {
    const COUNT: usize = PORTABLE;
    const ROWS: &[usize] = &[4, 4];

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self {
        Portable([value; PORTABLE])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's: `COUNT` values are there.
        Portable(unsafe { from.cast::<[f32; PORTABLE]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's.
        unsafe { to.cast::<[f32; PORTABLE]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn load_some(from: *const f32, count: usize) -> Self {
        let mut values = [0.0; PORTABLE];
        for (lane, value) in values.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's.
            *value = unsafe { *from.add(lane) };
        }
        Portable(values)
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize) {
        for (lane, value) in self.0.into_iter().enumerate().take(count) {
            // SAFETY: the caller's.
            unsafe { *to.add(lane) = value };
        }
    }

    #[inline(always)]
    unsafe fn times(self, other: Self) -> Self {
        Portable(std::array::from_fn(|lane| self.0[lane] * other.0[lane]))
    }

    #[inline(always)]
    unsafe fn times_plus(self, other: Self, sum: Self) -> Self {
        // Where the instruction always exists; elsewhere `mul_add` would be a library call.
        let one = |a: f32, b: f32, c: f32| if cfg!(target_arch = "aarch64") { a.mul_add(b, c) } else { a * b + c };
        Portable(std::array::from_fn(|lane| one(self.0[lane], other.0[lane], sum.0[lane])))
    }

    #[inline(always)]
    unsafe fn turn(lines: [*const f32; MOST], to: *mut f32, step: usize) {
        // SAFETY: the caller's.
        let lines: [Portable; PORTABLE] = std::array::from_fn(|line| unsafe { Portable::load(lines[line]) });
        for lane in 0..PORTABLE {
            // SAFETY: the caller's.
            unsafe { Portable(std::array::from_fn(|line| lines[line].0[lane])).store(to.add(lane * step)) };
        }
    }

    #[inline(always)]
    unsafe fn prefetch(_from: *const f32) {}
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Lanes, MOST};

    /// Eight values: processors with AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub struct Avx2(__m256);

    /// Eight ones followed by eight zeros.
    static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

    impl Avx2 {
        /// A mask of the first `count` lanes.
        #[inline(always)]
        unsafe fn mask(count: usize) -> __m256i {
            // SAFETY: the caller has AVX2; eight numbers from an index not after the eighth.
            unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - count.min(8)).cast()) }
        }
    }

    // SAFETY of all below: the caller runs on a processor with AVX2 and FMA and has promised that the memory is there.
    #[allow(clippy::undocumented_unsafe_blocks, reason = "said once above")]
    impl Lanes for Avx2 {
        const COUNT: usize = 8;
        const ROWS: &[usize] = &[12, 6];

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Avx2(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Avx2(unsafe { _mm256_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm256_storeu_ps(to, self.0) };
        }

        #[inline(always)]
        unsafe fn load_some(from: *const f32, count: usize) -> Self {
            Avx2(unsafe { _mm256_maskload_ps(from, Self::mask(count)) })
        }

        #[inline(always)]
        unsafe fn store_some(self, to: *mut f32, count: usize) {
            unsafe { _mm256_maskstore_ps(to, Self::mask(count), self.0) };
        }

        #[inline(always)]
        unsafe fn times(self, other: Self) -> Self {
            Avx2(unsafe { _mm256_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn times_plus(self, other: Self, sum: Self) -> Self {
            Avx2(unsafe { _mm256_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn turn(lines: [*const f32; MOST], to: *mut f32, step: usize) {
            unsafe {
                // Lines r and r + 4 share a vector; then squares of four are transposed in each half.
                for half in 0..2 {
                    let pair = |r: usize| {
                        let low = _mm256_castps128_ps256(_mm_loadu_ps(lines[r].add(4 * half)));
                        _mm256_insertf128_ps::<1>(low, _mm_loadu_ps(lines[r + 4].add(4 * half)))
                    };
                    let (a, b, c, d) = (pair(0), pair(1), pair(2), pair(3));
                    let (low, high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
                    let (low_2, high_2) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
                    let to = to.add(4 * half * step);
                    _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(low, low_2));
                    _mm256_storeu_ps(to.add(step), _mm256_shuffle_ps::<0xee>(low, low_2));
                    _mm256_storeu_ps(to.add(2 * step), _mm256_shuffle_ps::<0x44>(high, high_2));
                    _mm256_storeu_ps(to.add(3 * step), _mm256_shuffle_ps::<0xee>(high, high_2));
                }
            }
        }

        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
        }
    }

    /// Sixteen values: processors with AVX-512.
    #[derive(Clone, Copy)]
    pub struct Avx512(__m512);

    impl Avx512 {
        /// A mask of the first `count` lanes.
        #[inline(always)]
        fn mask(count: usize) -> u16 {
            ((1_u32 << count.min(16)) - 1) as u16
        }
    }

    // SAFETY of all below: the caller runs on a processor with AVX-512F and has promised that the memory is there.
    #[allow(clippy::undocumented_unsafe_blocks, reason = "said once above")]
    impl Lanes for Avx512 {
        const COUNT: usize = 16;
        const ROWS: &[usize] = &[14, 14, 8, 6];

        #[inline(always)]
        unsafe fn splat(value: f32) -> Self {
            Avx512(unsafe { _mm512_set1_ps(value) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            Avx512(unsafe { _mm512_loadu_ps(from) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            unsafe { _mm512_storeu_ps(to, self.0) };
        }

        #[inline(always)]
        unsafe fn load_some(from: *const f32, count: usize) -> Self {
            Avx512(unsafe { _mm512_maskz_loadu_ps(Self::mask(count), from) })
        }

        #[inline(always)]
        unsafe fn store_some(self, to: *mut f32, count: usize) {
            unsafe { _mm512_mask_storeu_ps(to, Self::mask(count), self.0) };
        }

        #[inline(always)]
        unsafe fn times(self, other: Self) -> Self {
            Avx512(unsafe { _mm512_mul_ps(self.0, other.0) })
        }

        #[inline(always)]
        unsafe fn times_plus(self, other: Self, sum: Self) -> Self {
            Avx512(unsafe { _mm512_fmadd_ps(self.0, other.0, sum.0) })
        }

        #[inline(always)]
        unsafe fn turn(lines: [*const f32; MOST], to: *mut f32, step: usize) {
            unsafe {
                // Each line is read once and whole: cache lines a power of two apart evict each other.
                // Squares of four are transposed in each quarter of a vector, then quarters are gathered.
                let mut quarters = [[_mm512_setzero_ps(); 4]; 4];
                let four = |first: usize| {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|line| _mm512_loadu_ps(lines[first + line]));
                    let (low, high) = (_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
                    let (low_2, high_2) = (_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
                    [
                        _mm512_shuffle_ps::<0x44>(low, low_2),
                        _mm512_shuffle_ps::<0xee>(low, low_2),
                        _mm512_shuffle_ps::<0x44>(high, high_2),
                        _mm512_shuffle_ps::<0xee>(high, high_2),
                    ]
                };
                quarters[0] = four(0);
                quarters[1] = four(4);
                quarters[2] = four(8);
                quarters[3] = four(12);
                let gather = |column: usize| {
                    let [a, b, c, d] = [0, 1, 2, 3].map(|quarter: usize| quarters[quarter][column]);
                    let (even, odd) = (_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b));
                    let (even_2, odd_2) = (_mm512_shuffle_f32x4::<0x88>(c, d), _mm512_shuffle_f32x4::<0xdd>(c, d));
                    let to = to.add(column * step);
                    _mm512_storeu_ps(to, _mm512_shuffle_f32x4::<0x88>(even, even_2));
                    _mm512_storeu_ps(to.add(4 * step), _mm512_shuffle_f32x4::<0x88>(odd, odd_2));
                    _mm512_storeu_ps(to.add(8 * step), _mm512_shuffle_f32x4::<0xdd>(even, even_2));
                    _mm512_storeu_ps(to.add(12 * step), _mm512_shuffle_f32x4::<0xdd>(odd, odd_2));
                };
                gather(0);
                gather(1);
                gather(2);
                gather(3);
            }
        }

        #[inline(always)]
        unsafe fn prefetch(from: *const f32) {
            unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) };
        }
    }
}
