// RMS norm: y = w x r, r = 1 / sqrt(mean(x^2) + eps), row by row. Sums are f32. Rows lie one behind the other, except where there is a stride.
//
// Forward, a row of up to 4096 values that can be read 8 at a time is one warp's, which keeps it in registers: nothing is read twice, and no warp waits for another.
// Any other row is one block's, which reads it twice (the second time from the cache): grid (rows), block 128 threads up to 2048 values a row, 256 beyond.

template <class T>
__device__ __forceinline__ float inverse_root(const T *x, int width, bool aligned, float epsilon) {
    float sum = 0.0f;
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(x + column, a);
#pragma unroll
        for (int i = 0; i < N; i++) sum += a[i] * a[i];
    });
    return 1.0f / sqrtf(block_sum(sum) / width + epsilon);
}

template <class T, class W>
__device__ __forceinline__ void write_normed(const T *x, const W *weight, T *y, int width, float root) {
    each_of_row(width, is_aligned(x) && is_aligned(weight) && is_aligned(y), [=](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], w[N];
        load(x + column, a), load(weight + column, w);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] = w[i] * (a[i] * root);
        store(y + column, a);
    });
}

// y [rows, width] from x [rows, width] and w [width]; y has a stride.
template <class T, class W>
__device__ void rms_norm(const T *x, const W *weight, T *y, i64 y_stride, int width, float epsilon) {
    x += (i64)blockIdx.x * width, y += blockIdx.x * y_stride;
    write_normed(x, weight, y, width, inverse_root(x, width, is_aligned(x), epsilon));
}

// dx = (w dy - x r mean(w dy x) r) r, set or added; dx has a stride.
template <class T, class W>
__device__ void rms_norm_backward(const T *dy, const T *x, const W *weight, T *dx, i64 dx_stride, int width, float epsilon, int adds) {
    const i64 first = (i64)blockIdx.x * width;
    dy += first, x += first, dx += blockIdx.x * dx_stride;
    const bool aligned = is_aligned(dy) && is_aligned(x) && is_aligned(weight) && is_aligned(dx);
    float squares = 0.0f, along = 0.0f;
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], d[N], w[N];
        load(x + column, a), load(dy + column, d), load(weight + column, w);
#pragma unroll
        for (int i = 0; i < N; i++) squares += a[i] * a[i], along += w[i] * d[i] * a[i];
    });
    const float root = 1.0f / sqrtf(block_sum(squares) / width + epsilon);
    const float share = block_sum(along) * root / width;
    each_of_row(width, aligned, [=](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], d[N], w[N], before[N] = {};
        load(x + column, a), load(dy + column, d), load(weight + column, w);
        if (adds) load(dx + column, before);
#pragma unroll
        for (int i = 0; i < N; i++) before[i] += (w[i] * d[i] - a[i] * root * share) * root;
        store(dx + column, before);
    });
}

// Each warp of a block has a row.
#define ROWS_OF_BLOCK 4

// Calls f(chunk, column) for the values of this lane: CHUNKS times 8 of them, 256 apart.
template <int CHUNKS, class F>
__device__ __forceinline__ void each_chunk(int width, F f) {
#pragma unroll
    for (int i = 0; i < CHUNKS; i++) {
        const int column = (i * 32 + threadIdx.x % 32) * 8;
        if (column < width) f(i, column);
    }
}

// Grid (ceil(rows / 4)), block 128.
template <int CHUNKS>
__device__ __forceinline__ void rms_norm_in_warps(const bf16 *x, const float *weight, bf16 *y, i64 y_stride, int rows, int width, float epsilon) {
    const int row = blockIdx.x * ROWS_OF_BLOCK + threadIdx.x / 32;
    if (row >= rows) return;
    x += (i64)row * width, y += row * y_stride;
    uint4 kept[CHUNKS];
    float a[8], w[8], squares = 0.0f;
    each_chunk<CHUNKS>(width, [&](int i, int column) { kept[i] = *(const uint4 *)(x + column); });
    each_chunk<CHUNKS>(width, [&](int i, int) {
        unpack(kept[i], a);
#pragma unroll
        for (int j = 0; j < 8; j++) squares += a[j] * a[j];
    });
    const float root = 1.0f / sqrtf(warp_sum(squares) / width + epsilon);
    each_chunk<CHUNKS>(width, [&](int i, int column) {
        unpack(kept[i], a), load(weight + column, w);
#pragma unroll
        for (int j = 0; j < 8; j++) a[j] = w[j] * (a[j] * root);
        store(y + column, a);
    });
}

// partial [pieces, width] = sums of dy x r over the rows of a piece, in their order; `add_pieces` adds them to the gradient.
// Grid (pieces), pieces = min(264, ceil(rows / 8)); block 256; shared memory width f32.
template <class T>
__device__ void rms_norm_weight_gradient(const T *dy, const T *x, float *partial, int rows, int width, float epsilon) {
    DYNAMIC_SHARED;
    float *sums = (float *)dynamic_shared;
    for (int column = threadIdx.x; column < width; column += blockDim.x) sums[column] = 0.0f;
    const int first = (int)((i64)rows * blockIdx.x / gridDim.x), end = (int)((i64)rows * (blockIdx.x + 1) / gridDim.x);
    for (int row = first; row < end; row++) {
        const T *here = x + (i64)row * width, *given = dy + (i64)row * width;
        const float root = inverse_root(here, width, is_aligned(here), epsilon);
        // Each column belongs to one thread.
        for (int column = threadIdx.x; column < width; column += blockDim.x) {
            sums[column] += widen(given[column]) * (widen(here[column]) * root);
        }
    }
    for (int column = threadIdx.x; column < width; column += blockDim.x) partial[(i64)blockIdx.x * width + column] = sums[column];
}

extern "C" __global__ void rms_norm_bf16_f32(const bf16 *x, const float *weight, bf16 *y, i64 y_stride, int rows, int width, float epsilon) {
    rms_norm(x, weight, y, y_stride, width, epsilon);
}
extern "C" __global__ void rms_norm_backward_bf16_f32(const bf16 *dy, const bf16 *x, const float *weight, bf16 *dx, i64 dx_stride, int width,
                                                      float epsilon, int adds) {
    rms_norm_backward(dy, x, weight, dx, dx_stride, width, epsilon, adds);
}

#define IN_WARPS(CHUNKS, WIDTH)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(128)                                                                                 \
        rms_norm_##WIDTH(const bf16 *x, const float *weight, bf16 *y, i64 y_stride, int rows, int width, float epsilon) {             \
        rms_norm_in_warps<CHUNKS>(x, weight, y, y_stride, rows, width, epsilon);                                                      \
    }

// Up to this many values a row.
IN_WARPS(8, 2048)
IN_WARPS(16, 4096)

extern "C" __global__ void rms_norm_weight_gradient_bf16(const bf16 *dy, const bf16 *x, float *partial, int rows, int width, float epsilon) {
    rms_norm_weight_gradient(dy, x, partial, rows, width, epsilon);
}
