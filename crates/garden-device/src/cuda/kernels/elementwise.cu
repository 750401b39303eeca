// Operations value by value and row by row. Strides and widths count values.
//
// Names end in the activation type, and in that of the weight where there is one. Unless a line says otherwise: 256 threads a block, no
// shared memory of the launch, any grid (each result depends on its inputs alone); good ones are, for n values, min(ceil(n / 2048), 2048)
// blocks, and for rows of a width (ceil(width / 2048), min(rows, 65535)).

template <class T>
__device__ void zero(T *x, i64 n) {
    each_value(n, is_aligned(x), [=](i64 at, auto count) {
        float none[decltype(count)::value] = {};
        store(x + at, none);
    });
}

template <class T>
__device__ void copy(const T *x, T *y, i64 n) {
    each_value(n, is_aligned(x) && is_aligned(y), [=](i64 at, auto count) {
        float a[decltype(count)::value];
        load(x + at, a);
        store(y + at, a);
    });
}

// y += x.
template <class T>
__device__ void add(const T *x, T *y, i64 n) {
    each_value(n, is_aligned(x) && is_aligned(y), [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], b[N];
        load(x + at, a), load(y + at, b);
#pragma unroll
        for (int i = 0; i < N; i++) b[i] += a[i];
        store(y + at, b);
    });
}

// x *= the gradient scale of the step.
template <class T>
__device__ void scale(T *x, const Scalars *scalars, i64 n) {
    const float factor = scalars->gradient_scale;
    each_value(n, is_aligned(x), [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(x + at, a);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] *= factor;
        store(x + at, a);
    });
}

// y [rows, width] += bias [width]; y has a stride.
template <class T, class W>
__device__ void add_bias(T *y, i64 stride, const W *bias, int rows, int width) {
    each_of_rows(rows, width, is_aligned(y, stride) && is_aligned(bias), [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], b[N];
        load(y + row * stride + column, a), load(bias + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] += b[i];
        store(y + row * stride + column, a);
    });
}

// partial [pieces, width] = sums over the rows of dy [rows, width] that belong to a piece; dy has a stride.
// Grid (ceil(width / 256), pieces), block (32, 8), pieces = min(64, ceil(rows / 64)): a function of the rows alone, as the order of sums is.
// A thread has eight columns of every eighth row.
template <class T>
__device__ void bias_gradient_pieces(const T *dy, i64 stride, float *partial, int rows, int width) {
    __shared__ float sums[8][256];
    const int column = blockIdx.x * 256 + threadIdx.x * 8, pieces = gridDim.y;
    const int first = (int)((i64)rows * blockIdx.y / pieces), end = (int)((i64)rows * (blockIdx.y + 1) / pieces);
    const bool whole = is_aligned(dy, stride) && column + 8 <= width;
    float sum[8] = {};
#pragma unroll 4
    for (int row = first + threadIdx.y; row < end; row += 8) {
        float a[8] = {};
        if (whole) load(dy + row * stride + column, a);
        else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                if (column + i < width) a[i] = widen(dy[row * stride + column + i]);
            }
        }
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += a[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) sums[threadIdx.y][threadIdx.x * 8 + i] = sum[i];
    __syncthreads();
    const int own = threadIdx.y * 32 + threadIdx.x;
    if (blockIdx.x * 256 + own >= width) return;
    float all = 0.0f;
    for (int i = 0; i < 8; i++) all += sums[i][own];
    partial[(i64)blockIdx.y * width + blockIdx.x * 256 + own] = all;
}

// sum [width] += the pieces [pieces, width], in their order. For gradients of biases and of norms.
extern "C" __global__ void add_pieces(const float *partial, float *sum, int pieces, int width) {
    for (int column = blockIdx.x * blockDim.x + threadIdx.x; column < width; column += gridDim.x * blockDim.x) {
        float total = 0.0f;
        for (int piece = 0; piece < pieces; piece++) total += partial[(i64)piece * width + column];
        sum[column] += total;
    }
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// y [rows, width] = silu(gate) up. Gate and up may be halves of one buffer: each has a stride.
template <class T>
__device__ void swiglu(const T *gate, i64 gate_stride, const T *up, i64 up_stride, T *y, i64 y_stride, int rows, int width) {
    const bool aligned = is_aligned(gate, gate_stride) && is_aligned(up, up_stride) && is_aligned(y, y_stride);
    each_of_all(rows, width, aligned, [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        float g[N], u[N];
        load(gate + row * gate_stride + column, g), load(up + row * up_stride + column, u);
#pragma unroll
        for (int i = 0; i < N; i++) u[i] *= g[i] * sigmoid(g[i]);
        store(y + row * y_stride + column, u);
    });
}

// dgate = dy up (s + gate s (1 - s)), and in place of dy comes dup = dy gate s, s = sigmoid(gate). With y also what swiglu gave, the same bits:
// all it is made of has been read. dy and dgate have one stride, gate and up another, y its own.
template <class T>
__device__ void swiglu_backward(T *dy, T *dgate, i64 gradient_stride, const T *gate, const T *up, i64 stride, T *y, i64 y_stride, int rows,
                                int width) {
    const bool aligned = is_aligned(dy, gradient_stride) && is_aligned(gate, stride) && is_aligned(up) && is_aligned(dgate) && is_aligned(y, y_stride);
    each_of_all(rows, width, aligned, [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        float d[N], g[N], u[N], m[N];
        const i64 at = row * gradient_stride + column, from = row * stride + column;
        load(dy + at, d), load(gate + from, g), load(up + from, u);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float s = sigmoid(g[i]), own = g[i];
            m[i] = u[i] * (own * s);
            g[i] = d[i] * u[i] * (s + own * s * (1.0f - s));
            d[i] *= own * s;
        }
        store(dgate + at, g), store(dy + at, d);
        if (y) store(y + row * y_stride + column, m);
    });
}

// The share of a normal distribution below x.
__device__ __forceinline__ float normal_below(float x) { return 0.5f * erfcf(-0.70710678f * x); }

// y = exact GELU of x.
template <class T>
__device__ void gelu(const T *x, T *y, i64 n) {
    each_value(n, is_aligned(x) && is_aligned(y), [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(x + at, a);
#pragma unroll
        for (int i = 0; i < N; i++) a[i] *= normal_below(a[i]);
        store(y + at, a);
    });
}

// dx = dy (P(x) + x p(x)), with the normal distribution's P and its density p; dx may be dy.
template <class T>
__device__ void gelu_backward(const T *dy, const T *x, T *dx, i64 n) {
    each_value(n, is_aligned(dy) && is_aligned(x) && is_aligned(dx), [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], d[N];
        load(x + at, a), load(dy + at, d);
#pragma unroll
        for (int i = 0; i < N; i++) d[i] *= normal_below(a[i]) + a[i] * expf(-0.5f * a[i] * a[i]) * 0.3989423f;
        store(dx + at, d);
    });
}

// y = x / (1 - rate) where a hash of the seed and the place says so, else 0; added to y where `adds` is not 0. `choice` makes another seed of
// the step's for each user; `border` is rate 2^32 and `factor` 1 / (1 - rate), both as the CPU computes them.
template <class T>
__device__ void dropout(const T *x, i64 x_stride, T *y, i64 y_stride, int rows, int width, u64 border, float factor, const Scalars *scalars,
                        u64 choice, int adds) {
    const u64 seed = scalars->seed ^ choice;
    each_of_rows(rows, width, is_aligned(x, x_stride) && is_aligned(y, y_stride), [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], b[N] = {};
        const u64 place = (u64)row * width + column;
        load(x + row * x_stride + column, a);
        if (adds) load(y + row * y_stride + column, b);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const bool stays = mixed(seed ^ mixed(place + i)) >> 32 >= border;
            b[i] = __fadd_rn(b[i], stays ? __fmul_rn(a[i], factor) : 0.0f);
        }
        store(y + row * y_stride + column, b);
    });
}

// y [rows, width] = x [rows, width]; both have a stride. For rows of any width, also narrow ones.
template <class T>
__device__ void copy_rows(const T *x, i64 x_stride, T *y, i64 y_stride, int rows, int width) {
    each_of_all(rows, width, is_aligned(x, x_stride) && is_aligned(y, y_stride), [=](int row, int column, auto count) {
        float a[decltype(count)::value];
        load(x + row * x_stride + column, a);
        store(y + row * y_stride + column, a);
    });
}

// x [rows, width]: columns belong in groups of `each` to `of` owners in turn; those that are not of the row's owner become zero.
template <class T>
__device__ void keep_own(T *x, i64 stride, const int *owners, int each, int of, int rows, int width) {
    // Groups are of a multiple of what is stored at once wherever rows are aligned: ranks are padded.
    each_of_all(rows, width, is_aligned(x, stride) && each % 8 == 0, [=](int row, int column, auto count) {
        if (column / each % of == owners[row]) {
            return;
        }
        float a[decltype(count)::value] = {};
        store(x + row * stride + column, a);
    });
}

// y [rows, width] = x [rows, width] as another type; y is filled with zeros from `width` to `padded`. Weights, biases, pixels, rows to pad.
template <class A, class B>
__device__ void convert(const A *x, i64 x_stride, B *y, i64 y_stride, int rows, int width, int padded) {
    each_of_rows(rows, width, is_aligned(x, x_stride) && is_aligned(y, y_stride), [=](int row, int column, auto count) {
        float a[decltype(count)::value];
        load(x + row * x_stride + column, a);
        store(y + row * y_stride + column, a);
    });
    const float none[1] = {0.0f};
    const int thread = blockIdx.x * blockDim.x + threadIdx.x;
    for (int row = blockIdx.y; row < rows; row += gridDim.y) {
        for (int column = width + thread; column < padded; column += gridDim.x * blockDim.x) store(y + row * y_stride + column, none);
    }
}

// y [rows, width] = rows of the weight that the tokens name.
template <class T, class W>
__device__ void embed(const W *weight, const int *tokens, T *y, int rows, int width) {
    each_of_rows(rows, width, is_aligned(weight, width) && is_aligned(y, width), [=](int row, int column, auto count) {
        float a[decltype(count)::value];
        load(weight + (i64)tokens[row] * width + column, a);
        store(y + (i64)row * width + column, a);
    });
}

// gradient [vocabulary, width] += dy [rows, width], row by row; dy has a stride, and the `skipped` tokens get nothing.
// Grid (rows), block 256. The block of a token's first row adds all rows of that token in their order; the others find an earlier row and end.
template <class T>
__device__ void embed_backward(const T *dy, i64 stride, const int *tokens, float *gradient, int rows, int width, const int *skipped, int skips) {
    __shared__ int found[256], counts[8];
    const int own = blockIdx.x, token = tokens[own], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int i = 0; i < skips; i++) {
        if (skipped[i] == token) return;
    }
    bool is_later = false;
    for (int row = threadIdx.x; row < own; row += 256) is_later |= tokens[row] == token;
    if (__syncthreads_or(is_later)) return;
    float *sums = gradient + (i64)token * width;
    for (int first = own; first < rows; first += 256) {
        const int row = first + threadIdx.x;
        const u32 same = __ballot_sync(ALL_LANES, row < rows && tokens[min(row, rows - 1)] == token);
        if (lane == 0) counts[warp] = __popc(same);
        __syncthreads();
        int before = __popc(same & ((1u << lane) - 1)), all = 0;
        for (int i = 0; i < 8; i++) {
            if (i < warp) before += counts[i];
            all += counts[i];
        }
        if (same >> lane & 1) found[before] = row;
        __syncthreads();
        for (int column = threadIdx.x; column < width; column += 256) {
            float sum = sums[column];
            for (int i = 0; i < all; i++) sum += widen(dy[found[i] * stride + column]);
            sums[column] = sum;
        }
        __syncthreads();
    }
}

// y [rows, width] = rows of x that `places` names; both have a stride.
template <class T>
__device__ void gather(const T *x, i64 x_stride, const int *places, T *y, i64 y_stride, int rows, int width) {
    each_of_rows(rows, width, is_aligned(x, x_stride) && is_aligned(y, y_stride), [=](int row, int column, auto count) {
        float a[decltype(count)::value];
        load(x + places[row] * x_stride + column, a);
        store(y + row * y_stride + column, a);
    });
}

// Rows of y that `places` names, each at most once, = x [rows, width]; both have a stride.
template <class T>
__device__ void scatter(const T *x, i64 x_stride, const int *places, T *y, i64 y_stride, int rows, int width) {
    each_of_rows(rows, width, is_aligned(x, x_stride) && is_aligned(y, y_stride), [=](int row, int column, auto count) {
        float a[decltype(count)::value];
        load(x + row * x_stride + column, a);
        store(y + places[row] * y_stride + column, a);
    });
}

// Turns the pairs (i, i + half) of all heads, in place; sign -1 turns back. x begins at the first head, tables are f32 [rows, half].
// Heads that lie side by side (queries, then keys) can be turned in one launch.
template <class T>
__device__ void rotate(T *x, i64 stride, const float *cosines, const float *sines, int rows, int heads, int half, float sign) {
    const bool aligned = is_aligned(x, stride) && half % 8 == 0 && is_aligned(cosines) && is_aligned(sines);
    each_of_all(rows, heads * half, aligned, [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        const int head = column / half, at = column % half;
        T *low = x + row * stride + head * 2 * half + at, *high = low + half;
        float a[N], b[N], cos[N], sin[N];
        load(low, a), load(high, b);
        load(cosines + (i64)row * half + at, cos), load(sines + (i64)row * half + at, sin);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float s = sign * sin[i], before = a[i];
            a[i] = before * cos[i] - b[i] * s;
            b[i] = b[i] * cos[i] + before * s;
        }
        store(low, a), store(high, b);
    });
}

// Adds to `sum` a number of each value but zero that depends on its bits and its place: results with the same bits give the same sum, in whatever order it is made.
extern "C" __global__ void digest(const bf16 *x, i64 stride, int rows, int width, u64 *sum) {
    u64 own = 0;
    each_of_all(rows, width, false, [&](int row, int column, auto) {
        const u16 bits = x[row * stride + column].bits;
        if (bits & 0x7fff) own += mixed(((u64)row * width + column) << 16 | bits);
    });
    own = block_sum(own);
    if (threadIdx.x == 0) atomicAdd(sum, own);
}

#define OF_ACTIVATIONS(T, NAME)                                                                                                      \
    extern "C" __global__ void zero_##NAME(T *x, i64 n) { zero(x, n); }                                                              \
    extern "C" __global__ void copy_##NAME(const T *x, T *y, i64 n) { copy(x, y, n); }                                               \
    extern "C" __global__ void add_##NAME(const T *x, T *y, i64 n) { add(x, y, n); }                                                 \
    extern "C" __global__ void scale_##NAME(T *x, const Scalars *scalars, i64 n) { scale(x, scalars, n); }                           \
    extern "C" __global__ void bias_gradient_##NAME(const T *dy, i64 stride, float *partial, int rows, int width) {                  \
        bias_gradient_pieces(dy, stride, partial, rows, width);                                                                      \
    }                                                                                                                                \
    extern "C" __global__ void swiglu_##NAME(const T *gate, i64 gate_stride, const T *up, i64 up_stride, T *y, i64 y_stride,         \
                                             int rows, int width) {                                                                  \
        swiglu(gate, gate_stride, up, up_stride, y, y_stride, rows, width);                                                          \
    }                                                                                                                                \
    extern "C" __global__ void swiglu_backward_##NAME(T *dy, T *dgate, i64 gradient_stride, const T *gate, const T *up, i64 stride,   \
                                                      T *y, i64 y_stride, int rows, int width) {                                     \
        swiglu_backward(dy, dgate, gradient_stride, gate, up, stride, y, y_stride, rows, width);                                     \
    }                                                                                                                                \
    extern "C" __global__ void copy_rows_##NAME(const T *x, i64 x_stride, T *y, i64 y_stride, int rows, int width) {                 \
        copy_rows(x, x_stride, y, y_stride, rows, width);                                                                            \
    }                                                                                                                                \
    extern "C" __global__ void keep_own_##NAME(T *x, i64 stride, const int *owners, int each, int of, int rows, int width) {          \
        keep_own(x, stride, owners, each, of, rows, width);                                                                          \
    }                                                                                                                                \
    extern "C" __global__ void gelu_##NAME(const T *x, T *y, i64 n) { gelu(x, y, n); }                                               \
    extern "C" __global__ void gelu_backward_##NAME(const T *dy, const T *x, T *dx, i64 n) { gelu_backward(dy, x, dx, n); }          \
    extern "C" __global__ void dropout_##NAME(const T *x, i64 x_stride, T *y, i64 y_stride, int rows, int width, u64 border,         \
                                              float factor, const Scalars *scalars, u64 choice, int adds) {                          \
        dropout(x, x_stride, y, y_stride, rows, width, border, factor, scalars, choice, adds);                                       \
    }                                                                                                                                \
    extern "C" __global__ void embed_backward_##NAME(const T *dy, i64 stride, const int *tokens, float *gradient, int rows,          \
                                                     int width, const int *skipped, int skips) {                                     \
        embed_backward(dy, stride, tokens, gradient, rows, width, skipped, skips);                                                   \
    }                                                                                                                                \
    extern "C" __global__ void gather_##NAME(const T *x, i64 x_stride, const int *places, T *y, i64 y_stride, int rows, int width) { \
        gather(x, x_stride, places, y, y_stride, rows, width);                                                                       \
    }                                                                                                                                \
    extern "C" __global__ void scatter_##NAME(const T *x, i64 x_stride, const int *places, T *y, i64 y_stride, int rows,             \
                                              int width) {                                                                           \
        scatter(x, x_stride, places, y, y_stride, rows, width);                                                                      \
    }                                                                                                                                \
    extern "C" __global__ void rotate_##NAME(T *x, i64 stride, const float *cosines, const float *sines, int rows, int heads,        \
                                             int half, float sign) {                                                                 \
        rotate(x, stride, cosines, sines, rows, heads, half, sign);                                                                  \
    }

OF_ACTIVATIONS(bf16, bf16)
OF_ACTIVATIONS(float, f32)

#define OF_WEIGHTS(T, NAME, W, WEIGHT)                                                                                               \
    extern "C" __global__ void add_bias_##NAME##_##WEIGHT(T *y, i64 stride, const W *bias, int rows, int width) {                    \
        add_bias(y, stride, bias, rows, width);                                                                                      \
    }                                                                                                                                \
    extern "C" __global__ void embed_##NAME##_##WEIGHT(const W *weight, const int *tokens, T *y, int rows, int width) {              \
        embed(weight, tokens, y, rows, width);                                                                                       \
    }

OF_WEIGHTS(bf16, bf16, bf16, bf16)
OF_WEIGHTS(bf16, bf16, f16, f16)
OF_WEIGHTS(bf16, bf16, float, f32)
OF_WEIGHTS(float, f32, bf16, bf16)
OF_WEIGHTS(float, f32, f16, f16)
OF_WEIGHTS(float, f32, float, f32)

#define OF_CONVERSIONS(A, FROM, B, TO)                                                                                               \
    extern "C" __global__ void convert_##FROM##_##TO(const A *x, i64 x_stride, B *y, i64 y_stride, int rows, int width, int padded) { \
        convert(x, x_stride, y, y_stride, rows, width, padded);                                                                      \
    }

OF_CONVERSIONS(float, f32, bf16, bf16)
OF_CONVERSIONS(float, f32, f16, f16)
OF_CONVERSIONS(float, f32, float, f32)
OF_CONVERSIONS(bf16, bf16, float, f32)
OF_CONVERSIONS(bf16, bf16, bf16, bf16)
OF_CONVERSIONS(bf16, bf16, f16, f16)
OF_CONVERSIONS(f16, f16, float, f32)
OF_CONVERSIONS(f16, f16, bf16, bf16)
OF_CONVERSIONS(f16, f16, f16, f16)

// For tests: ends as a GPU does that is lost.
extern "C" __global__ void trap() {
    asm volatile("trap;");
}
