//! Functions compiled several times: for every processor, and for those with wider vectors, detected at run time.

/// Compiles a function for the widest vectors of the processor. Its callees must be inlined to profit.
///
/// A closure would be nicer to write, but the compiler need not inline one, and then it is not vectorised.
macro_rules! widest {
    ($(#[$meta:meta])* fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $(-> $result:ty)? $body:block) => {
        $(#[$meta])*
        fn $name($($argument: $kind),*) $(-> $result)? {
            #[inline(always)]
            fn any($($argument: $kind),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,fma")]
                fn avx512($($argument: $kind),*) $(-> $result)? {
                    any($($argument),*)
                }

                #[target_feature(enable = "avx2,fma")]
                fn avx2($($argument: $kind),*) $(-> $result)? {
                    any($($argument),*)
                }

                if std::arch::is_x86_feature_detected!("fma") {
                    if std::arch::is_x86_feature_detected!("avx512f") {
                        // SAFETY: the processor has what the function is compiled for.
                        return unsafe { avx512($($argument),*) };
                    }
                    if std::arch::is_x86_feature_detected!("avx2") {
                        // SAFETY: as above.
                        return unsafe { avx2($($argument),*) };
                    }
                }
            }
            any($($argument),*)
        }
    };
}

pub(crate) use widest;
