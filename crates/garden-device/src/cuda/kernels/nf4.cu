// Weights of 4 bits, widened for products: blocks of 64 values with a scale each, two codes in a byte, the first in its upper half.
//
// Scales are f32, or have 8-bit codes with an f32 for each 256 of them and an offset for all. The values are the CPU's, bit for bit, and are
// rounded to nearest-even where the result is bf16.

__constant__ float CODES[16] = {-1.0f,       -0.6961928f, -0.52507305f, -0.3949175f, -0.28444138f, -0.18477343f, -0.091050036f, 0.0f,
                                0.0795803f,  0.1609302f,  0.2461123f,   0.33791524f, 0.44070983f,  0.562617f,    0.72295684f,   1.0f};

struct PlainScales {
    const float *scales;
    __device__ __forceinline__ float of(i64 block) const { return scales[block]; }
};

struct DoubleScales {
    const u8 *codes;
    const float *scales, *signed_map;
    float offset;
    __device__ __forceinline__ float of(i64 block) const {
        return __fadd_rn(__fmul_rn(signed_map[codes[block]], scales[block / 256]), offset);
    }
};

// What a weight was before it was packed: backward passes round to that.
__device__ __forceinline__ float rounded(float x, int to) {
    if (to == 1) {
        bf16 y;
        narrow(x, y);
        return widen(y);
    }
    if (to == 2) {
        f16 y;
        narrow(x, y);
        return widen(y);
    }
    return x;
}

// y [rows, padded] = the values [rows, columns] of packed [ceil(rows columns / 2)], with zeros from `columns` to `padded`; its rows are `stride` apart.
// round_to: 0 nothing, 1 bf16, 2 f16. Any grid, block 256; 4096 blocks are enough. Where rows are not padded (or their length is a multiple
// of 8) and the places are aligned, a thread reads 4 bytes and writes 8 values: 512 bytes a warp without gaps.
template <class T, class S>
__device__ void widen_nf4(const u8 *packed, S scales, T *y, int rows, int columns, int padded, int stride, int round_to) {
    // Sixteen banks hold the codes, so no two lanes are in each other's way.
    __shared__ float codes[16];
    if (threadIdx.x < 16) codes[threadIdx.x] = CODES[threadIdx.x];
    __syncthreads();
    const i64 n = (i64)rows * columns;
    const bool fits = (columns == stride || (columns % 8 == 0 && is_aligned(y, stride))) && is_aligned(y) && ((u64)packed & 3) == 0;
    each_value(n, fits, [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        const float scale = scales.of(at / 64);
        // Divided in 32 bits where that is enough: 64 take many times as long.
        const i64 row = n <= 0xffffffffll ? (u32)at / (u32)columns : at / columns;
        T *to = y + (columns == stride ? at : row * stride + (at - row * columns));
        float a[N];
        if constexpr (N == 8) {
            const u32 word = *(const u32 *)(packed + at / 2);
#pragma unroll
            for (int i = 0; i < 8; i++) a[i] = rounded(__fmul_rn(codes[word >> (i / 2 * 8 + (i % 2 ? 0 : 4)) & 15], scale), round_to);
        } else {
            a[0] = rounded(__fmul_rn(codes[packed[at / 2] >> (at % 2 ? 0 : 4) & 15], scale), round_to);
        }
        store(to, a);
    });
    const float none[1] = {0.0f};
    const int pad = padded - columns;
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < (i64)rows * pad; i += (i64)gridDim.x * blockDim.x) {
        store(y + i / pad * stride + columns + i % pad, none);
    }
}

#define OF_TYPE(T, NAME)                                                                                                             \
    extern "C" __global__ void widen_nf4_##NAME(const u8 *packed, const float *scales, T *y, int rows, int columns, int padded,      \
                                                int stride, int round_to) {                                                          \
        widen_nf4(packed, PlainScales{scales}, y, rows, columns, padded, stride, round_to);                                          \
    }                                                                                                                                \
    extern "C" __global__ void widen_nf4_double_##NAME(const u8 *packed, const u8 *codes, const float *scales, float offset,         \
                                                       const float *signed_map, T *y, int rows, int columns, int padded,             \
                                                       int stride, int round_to) {                                                   \
        widen_nf4(packed, DoubleScales{codes, scales, signed_map, offset}, y, rows, columns, padded, stride, round_to);              \
    }

OF_TYPE(bf16, bf16)
OF_TYPE(float, f32)
