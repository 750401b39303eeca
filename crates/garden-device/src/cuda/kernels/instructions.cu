// Types, and every instruction that C++ has no word for but those of Hopper alone (wgmma.cu). All other files are plain C++ on top of these.
//
// A program is this file, then common.cu, then those that kernels.rs lists for it: nothing is included, so that NVRTC needs no headers. Its options are
// --gpu-architecture=sm_XX (sm_90a with wgmma.cu), --std=c++17 and --device-as-default-execution-space (for lambdas).
// The instructions here are those of compute capability 8.0, which every card since has.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// Both 16-bit floating-point types are kept as bits; arithmetic is done in f32.
struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

__device__ __forceinline__ float widen(float x) { return x; }

__device__ __forceinline__ float widen(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ __forceinline__ float widen(f16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
}

// Rounding is to the nearest value, of two equally near ones to the even one.
__device__ __forceinline__ void narrow(float x, float &y) { y = x; }

__device__ __forceinline__ void narrow(float x, bf16 &y) { asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

__device__ __forceinline__ void narrow(float x, f16 &y) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x)); }

// Two values as bf16 in one word.
__device__ __forceinline__ u32 pair_of_bf16(float low, float high) {
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

// 2^x to about 2^-22; 0 for minus infinity.
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Where something lies in shared memory.
__device__ __forceinline__ u32 shared_address(const void *place) { return (u32)__cvta_generic_to_shared(place); }

// Begins to copy 16 aligned bytes to shared memory, or zeros where there are none.
__device__ __forceinline__ void copy16(u32 to, const void *from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(is_there ? 16 : 0) : "memory");
}

// The same with 4 bytes.
__device__ __forceinline__ void copy4(u32 to, const void *from, bool is_there) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(is_there ? 4 : 0) : "memory");
}

// Ends a group of copies.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most N of this thread's groups are under way.
template <int N>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Four matrices of 8 x 8 values of 16 bits from shared memory. Lane l gives the address of row l % 8 of matrix l / 8;
// lane l gets the values 2 (l % 4) and the next of row l / 4 of each.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// The same with rows and columns exchanged.
__device__ __forceinline__ void load_matrices_turned(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

// c [16, 8] += a [16, 16] b [16, 8], by a warp. With g = lane / 4 and t = lane % 4 a lane holds
// a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..); b: (2t.., g), (2t + 8.., g); c: (g, 2t..), (g + 8, 2t..).
__device__ __forceinline__ void multiply_add(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
