// RMS norm: y = w x r, r = 1 / sqrt(mean(x^2) + eps), row by row. Sums are f32; every row is one block's, which reads it twice (the second
// time from the cache).
//
// Grid (rows); block 128 threads up to 2048 values a row, 256 beyond: whole warps. Rows lie one behind the other, except where there is a stride.

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

#define OF_WEIGHTS(T, NAME, W, WEIGHT)                                                                                               \
    extern "C" __global__ void rms_norm_##NAME##_##WEIGHT(const T *x, const W *weight, T *y, i64 y_stride, int width,                \
                                                          float epsilon) {                                                           \
        rms_norm(x, weight, y, y_stride, width, epsilon);                                                                            \
    }                                                                                                                                \
    extern "C" __global__ void rms_norm_backward_##NAME##_##WEIGHT(const T *dy, const T *x, const W *weight, T *dx, i64 dx_stride,   \
                                                                   int width, float epsilon, int adds) {                             \
        rms_norm_backward(dy, x, weight, dx, dx_stride, width, epsilon, adds);                                                       \
    }

OF_WEIGHTS(bf16, bf16, bf16, bf16)
OF_WEIGHTS(bf16, bf16, f16, f16)
OF_WEIGHTS(bf16, bf16, float, f32)
OF_WEIGHTS(float, f32, bf16, bf16)
OF_WEIGHTS(float, f32, f16, f16)
OF_WEIGHTS(float, f32, float, f32)

extern "C" __global__ void rms_norm_weight_gradient_bf16(const bf16 *dy, const bf16 *x, float *partial, int rows, int width, float epsilon) {
    rms_norm_weight_gradient(dy, x, partial, rows, width, epsilon);
}
extern "C" __global__ void rms_norm_weight_gradient_f32(const float *dy, const float *x, float *partial, int rows, int width,
                                                        float epsilon) {
    rms_norm_weight_gradient(dy, x, partial, rows, width, epsilon);
}
