//! Work that is compiled twice: for every processor of its kind, and for those with wider vectors, which is found out when it runs.

/// Runs work with the widest vectors that the processor has. What is called inside must be inlined to profit.
#[inline(always)]
pub(super) fn wide<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the processor has what the function is compiled for.
            return unsafe { with_avx512(work) };
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: as above.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}

/// # Safety
/// The processor has AVX-512F and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,fma")]
unsafe fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}

/// # Safety
/// The processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}
