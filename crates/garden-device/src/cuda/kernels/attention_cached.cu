// Attention of single queries over a cache, which is what generating a token is: bf16, head sizes 64 and 128, at most 8 query heads for each
// key head, pointers aligned to 16 bytes, strides multiples of 8 values. What has more queries, or other sizes, goes to the other kernels.
//
// The keys of a row are cut into pieces of 128, so that one row fills more than a few multiprocessors, and all query heads of a key head are
// done together, so that keys and values are read once. A first kernel leaves each piece's highest score, sum and mixed values; a second adds
// the pieces in order.

#define PIECE 128
#define GROUP 8

// q [rows, heads, D], one query for each row; its keys are the lengths[row] tokens from firsts[row] on.
// partial [rows, heads, pieces, D + 2] f32 = mixed values, highest score, sum. Grid (kv_heads, rows, pieces), pieces = ceil(longest / 128),
// block 128, no shared memory of the launch.
template <int D>
__device__ __forceinline__ void attend_pieces(const bf16 *q, i64 q_stride, const bf16 *k, i64 k_stride, const bf16 *v, i64 v_stride,
                                              int heads, int kv_heads, const int *firsts, const int *lengths, float scale, float *partial) {
    constexpr int OWN = D / 32;
    __shared__ __align__(16) float queries[GROUP][D], shares[PIECE][GROUP], sums[4][GROUP][D];
    const int kv = blockIdx.x, row = blockIdx.y, first = blockIdx.z * PIECE, keys = min(PIECE, lengths[row] - first), group = heads / kv_heads;
    if (keys <= 0) return;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    k += ((i64)firsts[row] + first) * k_stride + kv * D, v += ((i64)firsts[row] + first) * v_stride + kv * D;
    for (int i = threadIdx.x; i < GROUP * D; i += 128) {
        queries[i / D][i % D] = i / D < group ? widen(q[row * q_stride + (kv * group + i / D) * D + i % D]) * scale : 0.0f;
    }
    __syncthreads();
    // A thread has a key. All of it is asked for at once: a single row has too few threads to wait piece by piece.
    float scores[GROUP] = {};
    {
        uint4 key[D / 8];
        const uint4 *own = (const uint4 *)(k + min((int)threadIdx.x, keys - 1) * k_stride);
#pragma unroll
        for (int i = 0; i < D / 8; i++) key[i] = own[i];
#pragma unroll
        for (int i = 0; i < D / 8; i++) {
            const u32 words[4] = {key[i].x, key[i].y, key[i].z, key[i].w};
#pragma unroll
            for (int h = 0; h < GROUP; h++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float2 a = *(const float2 *)&queries[h][i * 8 + j * 2];
                    scores[h] += a.x * __uint_as_float(words[j] << 16) + a.y * __uint_as_float(words[j] & 0xffff0000u);
                }
            }
        }
    }
    // A warp has every fourth value, and a lane some columns of it; they come while probabilities are computed.
    u32 values[PIECE / 4][OWN / 2];
#pragma unroll
    for (int i = 0; i < PIECE / 4; i++) {
        const u32 *from = (const u32 *)(v + min(warp + i * 4, keys - 1) * v_stride + lane * OWN);
#pragma unroll
        for (int j = 0; j < OWN / 2; j++) values[i][j] = from[j];
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) shares[threadIdx.x][h] = (int)threadIdx.x < keys ? scores[h] : __int_as_float(0xff800000);
    __syncthreads();
    // A warp has every fourth head.
    float *to = partial + ((i64)(row * heads + kv * group) * gridDim.z + blockIdx.z) * (D + 2);
    const i64 stride = (i64)gridDim.z * (D + 2);
    for (int h = warp; h < group; h += 4) {
        float own[PIECE / 32], top = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll
        for (int i = 0; i < PIECE / 32; i++) own[i] = shares[lane + 32 * i][h], top = fmaxf(top, own[i]);
        top = warp_highest(top);
#pragma unroll
        for (int i = 0; i < PIECE / 32; i++) {
            own[i] = expf(own[i] - top), sum += own[i];
            shares[lane + 32 * i][h] = own[i];
        }
        sum = warp_sum(sum);
        if (lane == 0) to[h * stride + D] = top, to[h * stride + D + 1] = sum;
    }
    __syncthreads();
    // Keys beyond the last have the share e^-infinity = 0.
    float mix[GROUP][OWN] = {};
#pragma unroll
    for (int i = 0; i < PIECE / 4; i++) {
#pragma unroll
        for (int h = 0; h < GROUP; h++) {
            const float share = shares[warp + i * 4][h];
#pragma unroll
            for (int j = 0; j < OWN / 2; j++) {
                mix[h][2 * j] += share * __uint_as_float(values[i][j] << 16);
                mix[h][2 * j + 1] += share * __uint_as_float(values[i][j] & 0xffff0000u);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < GROUP; h++) {
#pragma unroll
        for (int i = 0; i < OWN; i++) sums[warp][h][lane * OWN + i] = mix[h][i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < group * D; i += 128) {
        const int h = i / D, d = i % D;
        to[h * stride + d] = sums[0][h][d] + sums[1][h][d] + sums[2][h][d] + sums[3][h][d];
    }
}

// y [rows, heads, D] with a stride, from the pieces, in their order. Grid (rows * heads), block D.
template <int D>
__device__ __forceinline__ void attend_add_pieces(const float *partial, int pieces, int heads, const int *lengths, bf16 *y,
                                                  i64 y_stride) {
    const int count = (lengths[blockIdx.x / heads] + PIECE - 1) / PIECE;
    partial += (i64)blockIdx.x * pieces * (D + 2);
    float top = __int_as_float(0xff800000), sum = 0.0f, mix = 0.0f;
    for (int i = 0; i < count; i++) top = fmaxf(top, partial[i * (D + 2) + D]);
    for (int i = 0; i < count; i++) {
        const float *piece = partial + i * (D + 2);
        const float factor = expf(piece[D] - top);
        sum += piece[D + 1] * factor, mix += piece[threadIdx.x] * factor;
    }
    narrow(mix / sum, y[blockIdx.x / heads * y_stride + blockIdx.x % heads * D + threadIdx.x]);
}

#define OF_SIZE(D)                                                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) attend_pieces_##D(                                                             \
        const bf16 *q, i64 q_stride, const bf16 *k, i64 k_stride, const bf16 *v, i64 v_stride, int heads, int kv_heads,              \
        const int *firsts, const int *lengths, float scale, float *partial) {                                                        \
        attend_pieces<D>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, firsts, lengths, scale, partial);                   \
    }                                                                                                                                \
    extern "C" __global__ void __launch_bounds__(D) attend_add_pieces_##D(const float *partial, int pieces, int heads,               \
                                                                          const int *lengths, bf16 *y, i64 y_stride) {               \
        attend_add_pieces<D>(partial, pieces, heads, lengths, y, y_stride);                                                          \
    }

OF_SIZE(64)
OF_SIZE(128)
