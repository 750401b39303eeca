// AdamW with moments of f32 or of 8 bits, for all parameters in one launch. Values are f32; a bf16 copy for products is refreshed where there is one.
//
// Rounding is the CPU's, operation by operation (no multiplication is joined with an addition), so both devices write the same bits.

// What is the same for all values of an update.
struct Step {
    float shrink, keep, wide_step, wide_root, narrow_step, narrow_epsilon;
};

__device__ double power(double base, int exponent) {
    double result = 1.0;
    for (u32 rest = exponent;; base *= base) {
        if (rest & 1) result *= base;
        rest >>= 1;
        if (rest == 0) return result;
    }
}

// Makes `step` [6 f32] of what changes from update to update: learning rate and number of updates of a group, and the
// sum of all squares, or null without clipping to the largest norm. Grid (1), block 1.
extern "C" __global__ void adamw_step(const Scalars *scalars, int group, const float *sum_of_squares, float largest_norm, float beta1,
                                      float beta2, float epsilon, float decay, Step *step) {
    const float *const rate = &scalars->rate;
    const int *const updates = &scalars->updates[group];
    // Added to the norm before gradients are divided by it, as PyTorch does.
    const float clip_epsilon = 1e-6f;
    const double first = 1.0 - power(beta1, *updates), second = sqrt(1.0 - power(beta2, *updates));
    step->shrink = sum_of_squares ? fminf(__fdiv_rn(largest_norm, __fadd_rn(__fsqrt_rn(*sum_of_squares), clip_epsilon)), 1.0f) : 1.0f;
    step->keep = (float)__dsub_rn(1.0, __dmul_rn((double)*rate, (double)decay));
    step->wide_step = (float)((double)*rate / first);
    step->wide_root = (float)(1.0 / second);
    step->narrow_step = (float)(__dmul_rn(-(double)*rate, second) / first);
    step->narrow_epsilon = (float)__dmul_rn(second, (double)epsilon);
}

// A parameter: value and gradient [n] f32; moments f32 [n], or codes [n] with scales f32 [ceil(n / 256)]. Its copy or null: bf16 rows of `width`, which
// are `stride` apart, with `scale` times its values. The host writes these.
struct Parameter {
    float *value;
    const float *gradient;
    float *moments[2];
    u8 *codes[2];
    const Step *step;
    bf16 *shadow;
    i64 n, width, stride;
    float scale;
    u32 unused;
};

template <int N>
__device__ __forceinline__ void store_shadow(const Parameter &own, i64 at, const float (&values)[N]) {
    bf16 *to = own.shadow + (own.width == own.stride ? at : at / own.width * own.stride + at % own.width);
    bf16 rounded[N];
#pragma unroll
    for (int i = 0; i < N; i++) narrow_by_threshold(values[i] * own.scale, (u32)(at + i), rounded[i]);
    if constexpr (N == 8) {
        u32 words[4];
#pragma unroll
        for (int i = 0; i < 4; i++) words[i] = (u32)rounded[2 * i].bits | (u32)rounded[2 * i + 1].bits << 16;
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
        *to = rounded[0];
    }
}

__device__ __forceinline__ bool has_aligned_shadow(const Parameter &own) {
    return is_aligned(own.shadow, own.stride) && (own.width % 8 == 0 || own.width == own.stride);
}

// The copy of a parameter alone. Any grid, block 256.
extern "C" __global__ void cast_shadow(const float *value, bf16 *shadow, i64 n, i64 width, i64 stride, float scale) {
    Parameter own = {};
    own.shadow = shadow, own.width = width, own.stride = stride, own.scale = scale;
    each_value(n, is_aligned(value) && has_aligned_shadow(own), [=](i64 at, auto count) {
        float p[decltype(count)::value];
        load(value + at, p);
        store_shadow(own, at, p);
    });
}

// Grid (any, parameters), block 256.
extern "C" __global__ void adamw(const Parameter *parameters, float beta1, float beta2, float epsilon) {
    const Parameter own = parameters[blockIdx.y];
    const Step given = *own.step;
    float *const value = own.value, *const first = own.moments[0], *const second = own.moments[1];
    const float *const gradient = own.gradient;
    const float new1 = (float)(1.0 - (double)beta1), new2 = (float)(1.0 - (double)beta2);
    const bool aligned =
        is_aligned(value) && is_aligned(gradient) && is_aligned(first) && is_aligned(second) && (!own.shadow || has_aligned_shadow(own));
    each_value(own.n, aligned, [=](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float p[N], g[N], m[N], v[N];
        load(value + at, p), load(gradient + at, g), load(first + at, m), load(second + at, v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float shrunk = __fmul_rn(g[i], given.shrink);
            m[i] = __fadd_rn(__fmul_rn(beta1, m[i]), __fmul_rn(new1, shrunk));
            v[i] = __fadd_rn(__fmul_rn(beta2, v[i]), __fmul_rn(__fmul_rn(new2, shrunk), shrunk));
            const float root = __fadd_rn(__fmul_rn(__fsqrt_rn(v[i]), given.wide_root), epsilon);
            p[i] = __fsub_rn(__fmul_rn(p[i], given.keep), __fdiv_rn(__fmul_rn(given.wide_step, m[i]), root));
        }
        store(value + at, p), store(first + at, m), store(second + at, v);
        if (own.shadow) store_shadow(own, at, p);
    });
}

// Values that share a scale.
#define BLOCK 256

// The number of middles below a value is its nearest code; of two equally near codes it is the lower.
__device__ __forceinline__ int nearest(const float *middles, float value) {
    int code = 0;
#pragma unroll
    for (int step = 128; step > 0; step /= 2) {
        if (middles[code + step - 1] < value) code += step;
    }
    return code;
}

// The same with 8-bit moments as bitsandbytes has them: codes [n] with scales [ceil(n / 256)] for each moment. The value is updated with the
// moments before they are rounded, and decay comes last. signed_map and unsigned_map [256] are what the codes stand for, in rising order.
// Grid (any, parameters), block 256: a warp has a block of values, eight for each lane, 32 apart.
extern "C" __global__ void __launch_bounds__(256) adamw_narrow(const Parameter *parameters, const float *signed_map, const float *unsigned_map,
                                                               float beta1, float beta2) {
    const Parameter own = parameters[blockIdx.y];
    const i64 n = own.n;
    // Nothing of a small parameter is left for the last blocks.
    if ((i64)blockIdx.x * 8 * BLOCK >= n) return;
    float *const value = own.value, *const scales1 = own.moments[0], *const scales2 = own.moments[1];
    const float *const gradient = own.gradient;
    u8 *const codes1 = own.codes[0], *const codes2 = own.codes[1];
    __shared__ float map1[BLOCK], map2[BLOCK], middles1[BLOCK], middles2[BLOCK];
    map1[threadIdx.x] = signed_map[threadIdx.x], map2[threadIdx.x] = unsigned_map[threadIdx.x];
    __syncthreads();
    const float infinity = __int_as_float(0x7f800000);
    if (threadIdx.x < 255) {
        middles1[threadIdx.x] = __fmul_rn(__fadd_rn(map1[threadIdx.x], map1[threadIdx.x + 1]), 0.5f);
        middles2[threadIdx.x] = __fmul_rn(__fadd_rn(map2[threadIdx.x], map2[threadIdx.x + 1]), 0.5f);
    }
    __syncthreads();
    const Step given = *own.step;
    const float new1 = 1.0f - beta1, new2 = 1.0f - beta2;
    const int lane = threadIdx.x % 32;
    for (i64 block = (i64)blockIdx.x * 8 + threadIdx.x / 32; block * BLOCK < n; block += (i64)gridDim.x * 8) {
        const float before1 = scales1[block], before2 = scales2[block];
        float m[8], v[8], p[8], g[8];
        int code1[8], code2[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 at = block * BLOCK + i * 32 + lane;
            const bool is_there = at < n;
            g[i] = is_there ? gradient[at] : infinity, p[i] = is_there ? value[at] : 0.0f;
            code1[i] = is_there ? codes1[at] : 0, code2[i] = is_there ? codes2[at] : 0;
        }
        float scale1 = 0.0f, scale2 = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 at = block * BLOCK + i * 32 + lane;
            const float shrunk = __fmul_rn(g[i], given.shrink);
            m[i] = 0.0f, v[i] = 0.0f;
            // One gradient that is no number must not take its whole block with it.
            if (at >= n || !isfinite(shrunk)) continue;
            m[i] = __fadd_rn(__fmul_rn(beta1, __fmul_rn(map1[code1[i]], before1)), __fmul_rn(new1, shrunk));
            v[i] = __fadd_rn(__fmul_rn(beta2, __fmul_rn(map2[code2[i]], before2)), __fmul_rn(__fmul_rn(new2, shrunk), shrunk));
            const float change = __fdiv_rn(__fmul_rn(given.narrow_step, m[i]), __fadd_rn(__fsqrt_rn(v[i]), given.narrow_epsilon));
            p[i] = __fmul_rn(__fadd_rn(p[i], change), given.keep);
            value[at] = p[i];
            if (own.shadow) {
                const float one[1] = {p[i]};
                store_shadow(own, at, one);
            }
            scale1 = fmaxf(scale1, fabsf(m[i])), scale2 = fmaxf(scale2, v[i]);
        }
        scale1 = warp_highest(scale1), scale2 = warp_highest(scale2);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const i64 at = block * BLOCK + i * 32 + lane;
            if (at >= n) continue;
            int code = nearest(middles1, scale1 == 0.0f ? 0.0f : __fdiv_rn(m[i], scale1));
            // A first moment keeps its sign when it is rounded: the next code on its side is taken. Zero counts as positive.
            if (scale1 != 0.0f && signbit(map1[code]) != signbit(m[i])) code += m[i] > 0.0f ? 1 : -1;
            codes1[at] = (u8)code;
            codes2[at] = (u8)nearest(middles2, scale2 == 0.0f ? 0.0f : __fdiv_rn(v[i], scale2));
        }
        if (lane == 0) scales1[block] = scale1, scales2[block] = scale2;
    }
}
