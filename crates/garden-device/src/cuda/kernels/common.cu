// What several files need: 8 values at a time, loops over values and rows, sums in a fixed order, random choices.

#define ALL_LANES 0xffffffffu

// Numbers that change from step to step, as the host writes them (src/scalars.rs).
struct Scalars {
    u64 seed;
    float loss_scale, gradient_scale, rate;
    int updates[2], unused;
};

// An array of shared memory whose size the launch gives.
#define DYNAMIC_SHARED extern __shared__ __align__(16) u8 dynamic_shared[]

template <int N>
struct Count {
    static const int value = N;
};

// N values as f32: one, or eight from a place that is aligned to 16 bytes.
template <class T>
__device__ __forceinline__ void load(const T *from, float (&to)[1]) {
    to[0] = widen(*from);
}

__device__ __forceinline__ void load(const float *from, float (&to)[8]) {
    const float4 a = ((const float4 *)from)[0], b = ((const float4 *)from)[1];
    to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
}

// Eight bf16 as they lie in 16 bytes.
__device__ __forceinline__ void unpack(const uint4 &from, float (&to)[8]) {
    const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) to[2 * i] = __uint_as_float(words[i] << 16), to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
}

__device__ __forceinline__ void load(const bf16 *from, float (&to)[8]) { unpack(*(const uint4 *)from, to); }

__device__ __forceinline__ void load(const f16 *from, float (&to)[8]) {
    const uint4 given = *(const uint4 *)from;
    const u32 words[4] = {given.x, given.y, given.z, given.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to[2 * i] = widen(f16{(u16)words[i]});
        to[2 * i + 1] = widen(f16{(u16)(words[i] >> 16)});
    }
}

template <class T>
__device__ __forceinline__ void store(T *to, const float (&from)[1]) {
    narrow(from[0], *to);
}

__device__ __forceinline__ void store(float *to, const float (&from)[8]) {
    ((float4 *)to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    ((float4 *)to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

__device__ __forceinline__ void store(bf16 *to, const float (&from)[8]) {
    *(uint4 *)to = make_uint4(pair_of_bf16(from[0], from[1]), pair_of_bf16(from[2], from[3]),
                              pair_of_bf16(from[4], from[5]), pair_of_bf16(from[6], from[7]));
}

__device__ __forceinline__ void store(f16 *to, const float (&from)[8]) {
    u32 words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        f16 low, high;
        narrow(from[2 * i], low), narrow(from[2 * i + 1], high);
        words[i] = (u32)low.bits | (u32)high.bits << 16;
    }
    *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
}

// Whether 8 values can be read at once: at the place itself, and, with a stride, in every row.
__device__ __forceinline__ bool is_aligned(const void *place) { return ((u64)place & 15) == 0; }

template <class T>
__device__ __forceinline__ bool is_aligned(const T *place, i64 stride) {
    return is_aligned(place) && (stride * sizeof(T) & 15) == 0;
}

// Calls f(place, Count<8 or 1>) for n values. Any grid of one dimension; the result does not depend on it.
template <class F>
__device__ __forceinline__ void each_value(i64 n, bool is_aligned, F f) {
    const i64 thread = (i64)blockIdx.x * blockDim.x + threadIdx.x, threads = (i64)gridDim.x * blockDim.x;
    const i64 whole = is_aligned ? n / 8 : 0;
    for (i64 i = thread; i < whole; i += threads) f(i * 8, Count<8>());
    for (i64 i = whole * 8 + thread; i < n; i += threads) f(i, Count<1>());
}

// Calls f(row, column, Count<8 or 1>). Any grid: x goes along the columns, y along the rows.
template <class F>
__device__ __forceinline__ void each_of_rows(int rows, int width, bool is_aligned, F f) {
    const int thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    const int whole = is_aligned ? width / 8 : 0;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        for (int i = thread; i < whole; i += threads) f(row, i * 8, Count<8>());
        for (int i = whole * 8 + thread; i < width; i += threads) f(row, i, Count<1>());
    }
}

// The same for rows of any width, one thread after the other whatever row it is in. Any grid of one dimension; fewer than 2^32 turns.
template <class F>
__device__ __forceinline__ void each_of_all(int rows, int width, bool is_aligned, F f) {
    const u32 thread = blockIdx.x * blockDim.x + threadIdx.x, threads = gridDim.x * blockDim.x;
    const u32 whole = is_aligned ? width / 8 : 0, rest = width - 8 * whole;
    for (u32 i = thread; i < rows * whole; i += threads) f((int)(i / whole), (int)(i % whole) * 8, Count<8>());
    for (u32 i = thread; i < rows * rest; i += threads) f((int)(i / rest), (int)(8 * whole + i % rest), Count<1>());
}

// The same for one row that a block has for itself.
template <class F>
__device__ __forceinline__ void each_of_row(int width, bool is_aligned, F f) {
    const int whole = is_aligned ? width / 8 : 0;
    for (int i = threadIdx.x; i < whole; i += blockDim.x) f(i * 8, Count<8>());
    for (int i = whole * 8 + threadIdx.x; i < width; i += blockDim.x) f(i, Count<1>());
}

// Sums over a warp: every lane gets the same bits, since each step adds the same two numbers on both sides.
template <class T>
__device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(ALL_LANES, value, step);
    return value;
}

__device__ __forceinline__ float warp_highest(float value) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, step));
    return value;
}

// Sums over a block of whole warps, for all its threads. Warps are added in their order.
template <class T>
__device__ __forceinline__ T block_sum(T value) {
    __shared__ T sums[32];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    T sum = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) sum += sums[warp];
    return sum;
}

__device__ __forceinline__ float block_highest(float value) {
    __shared__ float highest[32];
    value = warp_highest(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) highest[threadIdx.x / 32] = value;
    __syncthreads();
    float result = highest[0];
    for (int warp = 1; warp < (int)blockDim.x / 32; warp++) result = fmaxf(result, highest[warp]);
    return result;
}

// SplitMix64, as on the CPU: every bit of the result depends on every bit of the number.
__device__ __forceinline__ u64 mixed(u64 number) {
    u64 z = number + 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

// The upper or the lower bf16 beside a value, by the threshold of its place: on average nothing is lost, however small a change is. As on the CPU.
__device__ __forceinline__ void narrow_by_threshold(float value, u32 place, bf16 &to) {
    if (!isfinite(value)) return narrow(value, to);
    place = (place ^ place >> 16) * 0x7feb352du;
    place ^= place >> 15;
    place = (place ^ place >> 16) * 0x846ca68bu;
    place ^= place >> 15;
    to.bits = (u16)((__float_as_uint(value) + (place >> 16)) >> 16);
}

// The segment that a token belongs to: the last that begins at it or before it. Empty segments have no tokens.
__device__ __forceinline__ int segment_of(const int *starts, int segments, int token) {
    int low = 0, high = segments;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (starts[middle] <= token) low = middle;
        else high = middle;
    }
    return low;
}
