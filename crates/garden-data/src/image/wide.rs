//! Functions compiled twice: for every processor, and for those with AVX2, detected at run time.

/// Also compiles a function for AVX2 and fast shifts. Its callees must be inlined to profit.
macro_rules! widest {
    ($(#[$meta:meta])* $visibility:vis fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        $visibility fn $name($($argument: $kind),*) $(-> $result)? {
            #[inline(always)]
            fn any($($argument: $kind),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
                fn avx2($($argument: $kind),*) $(-> $result)? {
                    any($($argument),*)
                }

                if $crate::image::wide::has_avx2() {
                    // SAFETY: the processor has what the function is compiled for.
                    return unsafe { avx2($($argument),*) };
                }
            }
            any($($argument),*)
        }
    };
}

pub(super) use widest;

/// Whether the processor has AVX2 and the bit manipulation instructions that come with it.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx2() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx2") && has!("bmi1") && has!("bmi2") && has!("lzcnt")
}

/// Whether the processor has the AVX-512 extensions that permute bytes and multiply pairs.
#[cfg(target_arch = "x86_64")]
pub(super) fn has_avx512() -> bool {
    use std::arch::is_x86_feature_detected as has;
    has!("avx512f") && has!("avx512bw") && has!("avx512vl") && has!("avx512vbmi") && has!("avx512vnni")
}
