// Attention on the tensor cores of Hopper, for bf16 and head sizes 64, 80 and 128 where segments are longer than 64 tokens.
//
// The tiles, the layout of heads and segments, and the order of sums across blocks are those of attention.cu. What differs is that four warps multiply at once, and both
// operands of a product may stay in shared memory (wgmma.cu): a tile of keys is read once for 64 queries instead of once for 16. A block is a warpgroup with 64 rows; two
// blocks or more share a multiprocessor, so that one multiplies while another computes exponentials. Copies of the next tiles begin behind a tile's first products, which do
// not wait for them then. (Measured on an H200: blocks of two warpgroups that share their tiles are slower by a tenth, since they wait for each other.)

// Shared memory for tiles, which begin at multiples of 1024 bytes.
#define TILES extern __shared__ __align__(1024) u8 dynamic_shared[]

// Keys that a row sees, counted from this lane's first column.
__device__ __forceinline__ int seen_by(int row, int before, int keys, int is_causal) {
    return (is_causal ? min(keys, before + row + 1) : keys) - threadIdx.x % 4 * 2;
}

// All copies are there for every thread of the block, and nobody uses what the next ones overwrite.
__device__ __forceinline__ void meet() {
    wait_for_copies<0>();
    show_copies();
    __syncthreads();
}

// Exponentials of the scores [64, 8 N] of a tile, `limit` of whose columns are seen by the two rows of this lane: turns them into shares that have to be divided by `total`,
// keeps the highest score of all tiles so far, and returns the factors that make up for its rise.
template <int N>
__device__ __forceinline__ void soften(float (&scores)[N][4], const int (&limit)[2], bool is_whole, float factor, float (&top)[2], float (&total)[2],
                                       float (&shrink)[2]) {
    if (!is_whole) {
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (n * 8 + i % 2 >= limit[i / 2]) scores[n][i] = __int_as_float(0xff800000);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float highest = top[half];
#pragma unroll
        for (int n = 0; n < N; n++) highest = fmaxf(highest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
        highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
        highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
        shrink[half] = exp2_fast((top[half] - highest) * factor);
        top[half] = highest;
        const float base = highest * factor;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < N; n++) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float p = exp2_fast(scores[n][2 * half + i] * factor - base);
                scores[n][2 * half + i] = p;
                sum += p;
            }
        }
        total[half] = total[half] * shrink[half] + sum;
    }
}

// y [tokens, heads * D] with a stride, and sums [tokens, heads] f32 (or null); `firsts` and `lengths` are those of a cache, or null.
// The first product of the next tile is begun before the last one of this tile.
// Tiles of 64 queries and 64 keys. Grid (heads, capacity), block 128, shared memory 320 D bf16: queries, two tiles of keys, two of values.
template <int D>
__device__ __forceinline__ void attend_hopper(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads,
                                              int kv_heads, const int *starts, const int *firsts, const int *lengths, const int2 *tiles,
                                              int is_causal, float scale, bf16 *y, int y_stride, float *sums) {
    constexpr int ROWS = 64, KEYS = 64, THREADS = 128;
    constexpr u32 TILE = KEYS * D * 2;
    TILES;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int head = blockIdx.x, kv = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = starts[tile.x], queries = starts[tile.x + 1] - begin, first = tile.y * ROWS, rows = min(ROWS, queries - first);
    const int first_key = firsts ? firsts[tile.x] : begin, keys = lengths ? lengths[tile.x] : queries, before = keys - queries;
    const int seen = is_causal ? min(keys, before + first + rows) : keys, count = (seen + KEYS - 1) / KEYS;
    q += (i64)(begin + first) * q_stride + head * D;
    k += (i64)first_key * k_stride + kv * D, v += (i64)first_key * v_stride + kv * D;
    const u32 query_tile = shared_address(dynamic_shared), key_tiles = query_tile + ROWS * D * 2, value_tiles = key_tiles + 2 * TILE;
    auto copy_keys = [&](int j) {
        if (j < count) copy_rows<D, KEYS, THREADS>(key_tiles + j % 2 * TILE, k + (i64)j * KEYS * k_stride, k_stride, seen - j * KEYS);
    };
    auto copy_values = [&](int j) {
        if (j < count) copy_rows<D, KEYS, THREADS>(value_tiles + j % 2 * TILE, v + (i64)j * KEYS * v_stride, v_stride, seen - j * KEYS);
    };
    copy_rows<D, ROWS, THREADS>(query_tile, q, q_stride, rows);
    copy_keys(0);
    commit_copies();
    meet();
    copy_values(0);
    copy_keys(1);
    commit_copies();

    const float factor = scale * LOG2_E;
    float mix[D / 8][4] = {}, scores[KEYS / 8][4], top[2], total[2] = {}, shrink[2];
    u32 p[KEYS / 16][4];
    int limit[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        top[half] = __int_as_float(0xff800000);
        limit[half] = seen_by(first + warp * 16 + g + 8 * half, before, keys, is_causal);
    }
    // Keys that every row sees.
    const int everyone = is_causal ? min(keys, before + first + 1) : keys;
    begin_products();
    multiply_rows_of_tiles<D>(scores, query_tile, key_tiles);
    commit_products();
    wait_for_products<0>();
    settle(scores);
    soften(scores, limit, KEYS <= everyone, factor, top, total, shrink);
    operands_of(p, scores);
    for (int j = 1; j < count; j++) {
        meet();
        begin_products();
        multiply_rows_of_tiles<D>(scores, query_tile, key_tiles + j % 2 * TILE);
        commit_products();
        multiply_columns_of_tile<D>(mix, p, value_tiles + (j - 1) % 2 * TILE);
        commit_products();
        // Nobody needs the keys of the last tile any more, nor the values of the one before it.
        copy_keys(j + 1);
        copy_values(j);
        commit_copies();
        wait_for_products<1>();
        settle(scores);
        const int passed = j * KEYS, left[2] = {limit[0] - passed, limit[1] - passed};
        soften(scores, left, passed + KEYS <= everyone, factor, top, total, shrink);
        wait_for_products<0>();
        settle(mix);
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) mix[n][i] *= shrink[i / 2];
        }
        operands_of(p, scores);
    }
    meet();
    begin_products();
    multiply_columns_of_tile<D>(mix, p, value_tiles + (count - 1) % 2 * TILE);
    commit_products();
    wait_for_products<0>();
    settle(mix);
    // Every warp must be done with the tiles before their place is used to write.
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        total[half] += __shfl_xor_sync(ALL_LANES, total[half], 1);
        total[half] += __shfl_xor_sync(ALL_LANES, total[half], 2);
        const int row = warp * 16 + g + 8 * half;
        if (sums && t == 0 && row < rows) sums[(i64)(begin + first + row) * heads + head] = top[half] * scale + logf(total[half]);
    }
    bf16 *to = y + (i64)(begin + first + warp * 16) * y_stride + head * D;
    write_rows<D>(mix, 1.0f / total[0], 1.0f / total[1], dynamic_shared + warp * 16 * (D + 8) * 2, to, y_stride, rows - warp * 16);
}

// dq, with a stride of its own; dy [tokens, heads * D], sums and along [tokens, heads] f32.
// Tiles of 64 queries and 64 keys. Grid (heads, capacity), block 128, shared memory 384 D bf16: queries, what came back to them, and two stages of keys and values.
template <int D>
__device__ __forceinline__ void attend_backward_queries_hopper(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v,
                                                               int v_stride, int heads, int kv_heads, const int *starts, const int2 *tiles,
                                                               int is_causal, float scale, const bf16 *dy, const float *sums,
                                                               const float *along, bf16 *dq, int dq_stride) {
    constexpr int ROWS = 64, KEYS = 64, THREADS = 128;
    constexpr u32 TILE = KEYS * D * 2;
    TILES;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int head = blockIdx.x, kv = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4;
    const int begin = starts[tile.x], keys = starts[tile.x + 1] - begin, first = tile.y * ROWS, rows = min(ROWS, keys - first);
    const int seen = is_causal ? first + rows : keys, count = (seen + KEYS - 1) / KEYS;
    q += (i64)(begin + first) * q_stride + head * D, dy += ((i64)(begin + first) * heads + head) * D;
    k += (i64)begin * k_stride + kv * D, v += (i64)begin * v_stride + kv * D;
    const u32 query_tile = shared_address(dynamic_shared), given_tile = query_tile + TILE, stages = given_tile + TILE;
    auto copy_stage = [&](int j) {
        const u32 to = stages + j % 2 * 2 * TILE;
        if (j < count) {
            copy_rows<D, KEYS, THREADS>(to, k + (i64)j * KEYS * k_stride, k_stride, seen - j * KEYS);
            copy_rows<D, KEYS, THREADS>(to + TILE, v + (i64)j * KEYS * v_stride, v_stride, seen - j * KEYS);
        }
        commit_copies();
    };
    copy_rows<D, ROWS, THREADS>(query_tile, q, q_stride, rows);
    copy_rows<D, ROWS, THREADS>(given_tile, dy, heads * D, rows);
    copy_stage(0);

    const float factor = scale * LOG2_E;
    float log[2], own[2];
    int limit[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp * 16 + g + 8 * half;
        // Clamped: what a row beyond the last computes is never written.
        const i64 place = (i64)(begin + first + min(row, rows - 1)) * heads + head;
        log[half] = sums[place] * LOG2_E, own[half] = along[place];
        limit[half] = seen_by(first + row, 0, keys, is_causal);
    }
    float gradient[D / 8][4] = {};
    for (int j = 0; j < count; j++) {
        meet();
        const u32 key_tile = stages + j % 2 * 2 * TILE;
        float p[KEYS / 8][4], ds[KEYS / 8][4];
        begin_products();
        multiply_rows_of_tiles<D>(p, query_tile, key_tile);
        commit_products();
        multiply_rows_of_tiles<D>(ds, given_tile, key_tile + TILE);
        commit_products();
        copy_stage(j + 1);
        wait_for_products<1>();
        settle(p);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool sees = n * 8 + i % 2 < limit[i / 2] - j * KEYS;
                p[n][i] = sees ? exp2_fast(p[n][i] * factor - log[i / 2]) : 0.0f;
            }
        }
        wait_for_products<0>();
        settle(ds);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) ds[n][i] = p[n][i] * (ds[n][i] - own[i / 2]);
        }
        u32 operands[KEYS / 16][4];
        operands_of(operands, ds);
        begin_products();
        multiply_columns_of_tile<D>(gradient, operands, key_tile);
        commit_products();
        wait_for_products<0>();
        settle(gradient);
    }
    __syncthreads();
    bf16 *to = dq + (i64)(begin + first + warp * 16) * dq_stride + head * D;
    write_rows<D>(gradient, scale, scale, dynamic_shared + warp * 16 * (D + 8) * 2, to, dq_stride, rows - warp * 16);
}

// dk and dv, each with a stride of its own, or f32 sums in partial [2, splits, tokens, kv_heads, D] where splits > 1, as in attention.cu.
// Tiles of 64 keys and 64 queries. Grid (kv_heads * splits, capacity), block 128, shared memory 384 D bf16 and 256 f32: keys and values, and two stages of queries,
// what came back to them, their logarithms and their sums along.
template <int D>
__device__ __forceinline__ void attend_backward_keys_hopper(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride,
                                                            int heads, int kv_heads, const int *starts, const int2 *tiles, int is_causal,
                                                            float scale, const bf16 *dy, const float *sums, const float *along, bf16 *dk,
                                                            int dk_stride, bf16 *dv, int dv_stride, float *partial, int splits, int tokens) {
    constexpr int KEYS = 64, QUERIES = 64, THREADS = 128;
    constexpr u32 TILE = KEYS * D * 2;
    TILES;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int kv = blockIdx.x / splits, split = blockIdx.x % splits, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = starts[tile.x], queries = starts[tile.x + 1] - begin, first = tile.y * KEYS, rows = min(KEYS, queries - first);
    const int each = heads / kv_heads / splits;
    // Tiles of queries that see a key of this tile; the same for each head.
    const int first_tile = is_causal ? first / QUERIES : 0, end_tile = (queries + QUERIES - 1) / QUERIES;
    const int of_head = end_tile - first_tile, count = each * of_head;
    const u32 key_tile = shared_address(dynamic_shared), value_tile = key_tile + TILE, stages = value_tile + TILE;
    float *numbers = (float *)(dynamic_shared + 6 * TILE);

    auto copy_stage = [&](int i) {
        if (i < count) {
            const int head = (kv * splits + split) * each + i / of_head, at = (first_tile + i % of_head) * QUERIES, there = queries - at;
            const u32 to = stages + i % 2 * 2 * TILE;
            copy_rows<D, QUERIES, THREADS>(to, q + (i64)(begin + at) * q_stride + head * D, q_stride, there);
            copy_rows<D, QUERIES, THREADS>(to + TILE, dy + ((i64)(begin + at) * heads + head) * D, heads * D, there);
            const int row = threadIdx.x % QUERIES;
            const float *from = (threadIdx.x < QUERIES ? sums : along) + (i64)(begin + at + min(row, there - 1)) * heads + head;
            copy4(shared_address(numbers + i % 2 * 2 * QUERIES + threadIdx.x), from, row < there);
        }
        commit_copies();
    };
    copy_rows<D, KEYS, THREADS>(key_tile, k + (i64)(begin + first) * k_stride + kv * D, k_stride, rows);
    copy_rows<D, KEYS, THREADS>(value_tile, v + (i64)(begin + first) * v_stride + kv * D, v_stride, rows);
    copy_stage(0);

    const float factor = scale * LOG2_E;
    float sum_k[D / 8][4] = {}, sum_v[D / 8][4] = {};
    for (int i = 0; i < count; i++) {
        meet();
        const u32 query_tile = stages + i % 2 * 2 * TILE, given_tile = query_tile + TILE;
        float p[QUERIES / 8][4], ds[QUERIES / 8][4];
        begin_products();
        multiply_rows_of_tiles<D>(p, key_tile, query_tile);
        commit_products();
        multiply_rows_of_tiles<D>(ds, value_tile, given_tile);
        commit_products();
        copy_stage(i + 1);
        wait_for_products<1>();
        settle(p);
        const float *logs = numbers + i % 2 * 2 * QUERIES, *owns = logs + QUERIES;
        const int ahead = is_causal ? (first_tile + i % of_head) * QUERIES - first + t * 2 - warp * 16 - g : KEYS;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            const float2 log = *(const float2 *)(logs + n * 8 + t * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool sees = ahead >= j / 2 * 8 - n * 8 - j % 2;
                p[n][j] = sees ? exp2_fast(p[n][j] * factor - (j % 2 ? log.y : log.x) * LOG2_E) : 0.0f;
            }
        }
        u32 shares[QUERIES / 16][4], operands[QUERIES / 16][4];
        operands_of(shares, p);
        wait_for_products<0>();
        settle(ds);
        // While the tensor cores add to dv, the gradients of the scores are computed.
        begin_products();
        multiply_columns_of_tile<D>(sum_v, shares, given_tile);
        commit_products();
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            const float2 own = *(const float2 *)(owns + n * 8 + t * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) ds[n][j] = p[n][j] * (ds[n][j] - (j % 2 ? own.y : own.x));
        }
        operands_of(operands, ds);
        begin_products();
        multiply_columns_of_tile<D>(sum_k, operands, query_tile);
        commit_products();
        wait_for_products<0>();
        settle(sum_v);
        settle(sum_k);
    }
    if (splits == 1) {
        __syncthreads();
        u8 *room = dynamic_shared + warp * 16 * (D + 8) * 2;
        const i64 own = begin + first + warp * 16;
        write_rows<D>(sum_k, scale, scale, room, dk + own * dk_stride + kv * D, dk_stride, rows - warp * 16);
        write_rows<D>(sum_v, 1.0f, 1.0f, room, dv + own * dv_stride + kv * D, dv_stride, rows - warp * 16);
        return;
    }
    const i64 size = (i64)tokens * kv_heads * D;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = warp * 16 + g + 8 * half;
        if (row >= rows) continue;
        float *to = partial + split * size + ((i64)(begin + first + row) * kv_heads + kv) * D + t * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            *(float2 *)(to + n * 8) = make_float2(sum_k[n][2 * half] * scale, sum_k[n][2 * half + 1] * scale);
            *(float2 *)(to + splits * size + n * 8) = make_float2(sum_v[n][2 * half], sum_v[n][2 * half + 1]);
        }
    }
}

// Blocks that a multiprocessor has registers and shared memory for.
#if HEAD_SIZE == 128
#define BLOCKS 2
#else
#define BLOCKS 3
#endif

#define KERNELS(D)                                                                                                                              \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                                                                         \
        attend_hopper_##D(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads, int kv_heads,       \
                          const int *starts, const int *firsts, const int *lengths, const int2 *tiles, int is_causal, float scale, bf16 *y,     \
                          int y_stride, float *sums) {                                                                                          \
        attend_hopper<D>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, firsts, lengths, tiles, is_causal, scale, y, y_stride, \
                         sums);                                                                                                                 \
    }                                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS) attend_backward_queries_hopper_##D(                                                    \
        const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads, int kv_heads, const int *starts,      \
        const int2 *tiles, int is_causal, float scale, const bf16 *dy, const float *sums, const float *along, bf16 *dq, int dq_stride) {        \
        attend_backward_queries_hopper<D>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, tiles, is_causal, scale, dy, sums,    \
                                          along, dq, dq_stride);                                                                                \
    }                                                                                                                                           \
    extern "C" __global__ void __launch_bounds__(128, 2) attend_backward_keys_hopper_##D(                                                       \
        const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads, int kv_heads, const int *starts,      \
        const int2 *tiles, int is_causal, float scale, const bf16 *dy, const float *sums, const float *along, bf16 *dk, int dk_stride,          \
        bf16 *dv, int dv_stride, float *partial, int splits, int tokens) {                                                                      \
        attend_backward_keys_hopper<D>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, tiles, is_causal, scale, dy, sums,       \
                                       along, dk, dk_stride, dv, dv_stride, partial, splits, tokens);                                           \
    }

#if HEAD_SIZE == 64
KERNELS(64)
#elif HEAD_SIZE == 80
KERNELS(80)
#else
KERNELS(128)
#endif
