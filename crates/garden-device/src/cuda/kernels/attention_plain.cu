// Attention for any head size up to 256, any stride and both activation types: simple, and what the fast kernels of attention.cu are tested with.
// It also serves single queries of a cache, where there is nothing for tensor cores to do.
//
// Value d of head h of token t lies at t stride + h head_size + d, from a pointer to the first head of the first token. Segment s has the
// tokens starts[s] .. starts[s + 1]; segments never see each other. Query head h reads key head h / (heads / kv_heads).
// With p = softmax(scale q k^T): y = p v; dv = p^T dy, dp = dy v^T, ds = p (dp - sum(dy y)), dq = scale ds k, dk = scale ds^T q.
//
// A block owns one row of the result. Its warps take turns with the rows to sum over, a lane has every 32nd value of a head, and the warps'
// sums are added in their order. Grid (tokens * heads), for keys (tokens * kv_heads); block 32 warps at most (128 threads; 512 for single
// queries of a long cache); shared memory in f32: warps (head_size + 2), for the backward pass of keys warps 2 head_size, else warps head_size.

// Values of a head that a lane has.
#define PARTS 8

template <class T>
__device__ __forceinline__ void load_parts(float (&to)[PARTS], const T *from, int size) {
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        const int d = threadIdx.x % 32 + 32 * i;
        to[i] = d < size ? widen(from[d]) : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float (&a)[PARTS], const float (&b)[PARTS]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; i++) sum += a[i] * b[i];
    return warp_sum(sum);
}

// Adds what the warps have, in their order, and writes a row of `size` values. `shared` has room for warps * size.
template <class T>
__device__ void write_sum(float *shared, const float (&own)[PARTS], T *to, int size, float factor) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
#pragma unroll
    for (int i = 0; i < PARTS; i++) {
        if (lane + 32 * i < size) shared[warp * size + lane + 32 * i] = own[i];
    }
    __syncthreads();
    for (int d = threadIdx.x; d < size; d += blockDim.x) {
        float sum = 0.0f;
        for (int i = 0; i < warps; i++) sum += shared[i * size + d];
        narrow(sum * factor, to[d]);
    }
}

// y [tokens, heads * head_size] with a stride; sums [tokens, heads] f32 with the logarithm of each row's sum, or null.
// With a cache, `firsts` and `lengths` say where the keys of a segment are: its queries are the last of the lengths[s] tokens from firsts[s]
// on. Without one both are null, and the keys are the segment's own.
template <class T>
__device__ void attend(const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride, int heads, int kv_heads, int size,
                       const int *starts, int segments, const int *firsts, const int *lengths, int is_causal, float scale, T *y,
                       i64 y_stride, float *sums) {
    DYNAMIC_SHARED;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float *mixed_values = (float *)dynamic_shared, *tops = mixed_values + warps * size, *totals = tops + warps;
    const int token = blockIdx.x / heads, head = blockIdx.x % heads, kv = head / (heads / kv_heads);
    const int segment = segment_of(starts, segments, token), begin = starts[segment], queries = starts[segment + 1] - begin;
    const int first_key = firsts ? firsts[segment] : begin, keys = lengths ? lengths[segment] : queries;
    const int seen = is_causal ? keys - queries + token - begin + 1 : keys;
    k += first_key * k_stride + kv * size, v += first_key * v_stride + kv * size;
    float query[PARTS], mix[PARTS] = {}, top = __int_as_float(0xff800000), total = 0.0f;
    load_parts(query, q + token * q_stride + head * size, size);
    // Four keys at a time, so that their sums over the warp overlap.
    for (int first = warp * 4; first < seen; first += warps * 4) {
        float scores[4], highest = top;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = min(first + i, seen - 1);
            float there[PARTS];
            load_parts(there, k + key * k_stride, size);
            scores[i] = first + i < seen ? dot(query, there) * scale : __int_as_float(0xff800000);
            highest = fmaxf(highest, scores[i]);
        }
        const float shrink = expf(top - highest);
        top = highest, total *= shrink;
#pragma unroll
        for (int i = 0; i < PARTS; i++) mix[i] *= shrink;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int key = min(first + i, seen - 1);
            const float share = expf(scores[i] - top);
            float there[PARTS];
            load_parts(there, v + key * v_stride, size);
            total += share;
#pragma unroll
            for (int j = 0; j < PARTS; j++) mix[j] += share * there[j];
        }
    }
    if (lane == 0) tops[warp] = top, totals[warp] = total;
    __syncthreads();
    float highest = tops[0], all = 0.0f;
    for (int i = 1; i < warps; i++) highest = fmaxf(highest, tops[i]);
    // A warp without keys counts e^-infinity = 0 times.
    for (int i = 0; i < warps; i++) all += totals[i] * expf(tops[i] - highest);
    const float factor = expf(top - highest);
#pragma unroll
    for (int i = 0; i < PARTS; i++) mix[i] *= factor;
    write_sum(mixed_values, mix, y + token * y_stride + head * size, size, 1.0f / all);
    if (sums && threadIdx.x == 0) sums[(i64)token * heads + head] = highest + logf(all);
}

// along [tokens, heads] = sum(dy y) over a head: for both backward kernels, here and in attention.cu. y and dy [tokens, heads * head_size]; y has a
// stride.
// Eight lanes have a row. Grid (ceil(tokens * heads / 16)), block 128, no shared memory.
template <class T>
__device__ void attend_along(const T *y, i64 y_stride, const T *dy, float *along, i64 rows, int heads, int size) {
    const i64 row = (i64)blockIdx.x * 16 + threadIdx.x / 8;
    const int lane = threadIdx.x % 8;
    float sum = 0.0f;
    if (row < rows) {
        y += row / heads * y_stride + row % heads * size, dy += row * size;
        const int whole = is_aligned(y) && is_aligned(dy) ? size / 8 : 0;
        for (int i = lane; i < whole; i += 8) {
            float a[8], b[8];
            load(y + i * 8, a), load(dy + i * 8, b);
#pragma unroll
            for (int j = 0; j < 8; j++) sum += a[j] * b[j];
        }
        for (int i = whole * 8 + lane; i < size; i += 8) sum += widen(y[i]) * widen(dy[i]);
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (lane == 0 && row < rows) along[row] = sum;
}

// dq, laid out like q but with a stride of its own; dy [tokens, heads * head_size].
template <class T>
__device__ void attend_backward_queries(const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride, int heads,
                                        int kv_heads, int size, const int *starts, int segments, int is_causal, float scale,
                                        const T *dy, const float *sums, const float *along, T *dq, i64 dq_stride) {
    DYNAMIC_SHARED;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int token = blockIdx.x / heads, head = blockIdx.x % heads, kv = head / (heads / kv_heads);
    const int segment = segment_of(starts, segments, token), begin = starts[segment];
    const int seen = is_causal ? token - begin + 1 : starts[segment + 1] - begin;
    k += begin * k_stride + kv * size, v += begin * v_stride + kv * size;
    const i64 row = (i64)token * heads + head;
    const float log = sums[row], own = along[row];
    float query[PARTS], given[PARTS], sum[PARTS] = {};
    load_parts(query, q + token * q_stride + head * size, size);
    load_parts(given, dy + row * size, size);
#pragma unroll 2
    for (int key = warp; key < seen; key += warps) {
        float there[PARTS], value[PARTS];
        load_parts(there, k + key * k_stride, size);
        load_parts(value, v + key * v_stride, size);
        const float p = expf(dot(query, there) * scale - log), ds = p * (dot(given, value) - own);
#pragma unroll
        for (int i = 0; i < PARTS; i++) sum[i] += ds * there[i];
    }
    write_sum((float *)dynamic_shared, sum, dq + token * dq_stride + head * size, size, scale);
}

// dk and dv, summed over the queries that see a key and over the query heads that share it.
template <class T>
__device__ void attend_backward_keys(const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride, int heads, int kv_heads,
                                     int size, const int *starts, int segments, int is_causal, float scale, const T *dy,
                                     const float *sums, const float *along, T *dk, i64 dk_stride, T *dv, i64 dv_stride) {
    DYNAMIC_SHARED;
    const int warp = threadIdx.x / 32, warps = blockDim.x / 32, group = heads / kv_heads;
    const int token = blockIdx.x / kv_heads, kv = blockIdx.x % kv_heads;
    const int segment = segment_of(starts, segments, token), end = starts[segment + 1];
    const int first = is_causal ? token : starts[segment], count = end - first;
    float key[PARTS], value[PARTS], sum_k[PARTS] = {}, sum_v[PARTS] = {};
    load_parts(key, k + token * k_stride + kv * size, size);
    load_parts(value, v + token * v_stride + kv * size, size);
#pragma unroll 2
    for (int i = warp; i < count * group; i += warps) {
        const int query = first + i % count, head = kv * group + i / count;
        const i64 row = (i64)query * heads + head;
        float there[PARTS], given[PARTS];
        load_parts(there, q + query * q_stride + head * size, size);
        load_parts(given, dy + row * size, size);
        const float p = expf(dot(key, there) * scale - sums[row]), ds = p * (dot(value, given) - along[row]);
#pragma unroll
        for (int j = 0; j < PARTS; j++) sum_k[j] += ds * there[j], sum_v[j] += p * given[j];
    }
    float *shared = (float *)dynamic_shared;
    write_sum(shared, sum_k, dk + token * dk_stride + kv * size, size, scale);
    write_sum(shared + warps * size, sum_v, dv + token * dv_stride + kv * size, size, 1.0f);
}

#define OF_ACTIVATIONS(T, NAME)                                                                                                      \
    extern "C" __global__ void attend_##NAME(const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride,           \
                                             int heads, int kv_heads, int size, const int *starts, int segments, const int *firsts,  \
                                             const int *lengths, int is_causal, float scale, T *y, i64 y_stride, float *sums) {      \
        attend(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, size, starts, segments, firsts, lengths, is_causal, scale, y, \
               y_stride, sums);                                                                                                      \
    }                                                                                                                                \
    extern "C" __global__ void attend_along_##NAME(const T *y, i64 y_stride, const T *dy, float *along, i64 rows, int heads,         \
                                                   int size) {                                                                       \
        attend_along(y, y_stride, dy, along, rows, heads, size);                                                                     \
    }                                                                                                                                \
    extern "C" __global__ void attend_backward_queries_##NAME(                                                                       \
        const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride, int heads, int kv_heads, int size,             \
        const int *starts, int segments, int is_causal, float scale, const T *dy, const float *sums, const float *along, T *dq,      \
        i64 dq_stride) {                                                                                                             \
        attend_backward_queries(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, size, starts, segments, is_causal, scale,    \
                                dy, sums, along, dq, dq_stride);                                                                     \
    }                                                                                                                                \
    extern "C" __global__ void attend_backward_keys_##NAME(                                                                          \
        const T *q, i64 q_stride, const T *k, i64 k_stride, const T *v, i64 v_stride, int heads, int kv_heads, int size,             \
        const int *starts, int segments, int is_causal, float scale, const T *dy, const float *sums, const float *along, T *dk,      \
        i64 dk_stride, T *dv, i64 dv_stride) {                                                                                       \
        attend_backward_keys(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, size, starts, segments, is_causal, scale, dy,   \
                             sums, along, dk, dk_stride, dv, dv_stride);                                                             \
    }

OF_ACTIVATIONS(bf16, bf16)
OF_ACTIVATIONS(float, f32)
