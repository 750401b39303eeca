// Attention on tensor cores, for bf16 and head sizes 64, 80 and 128: tiles of queries and keys, scores in registers only.
//
// The layout of heads and segments and the formulas are those of attention_plain.cu; pointers are aligned to 16 bytes and strides are
// multiples of 8 values (else the plain kernels serve). The preparation of the backward pass is `attend_along` there.
//
// A block of threads owns a tile of rows of the result, each warp 16 of them (32 in the forward pass of long segments), and goes through the
// other side of the score matrix in tiles of 64. Tiles lie in shared memory as [rows, D + 8]: the 8 values more put the rows that a matrix
// load touches at once into different banks. Copies from memory run while the tensor cores work on what came before.
// The accumulator of a product has the layout of the first operand of the next one, so probabilities never leave registers; for gradients of
// keys the scores are computed with keys as rows for the same reason. Nothing is added across blocks, so results do not depend on their
// order: dq has its own kernel, and where one key head is shared by blocks for several query heads, each writes its own f32 sum, and
// `attend_add_splits` (attention_tiles.cu) adds those in order.
//
// All segments go in one launch: `attend_tiles` lists the tiles, the most work first, so that a launch does not end with one long block.

// Tiles along the other side of the score matrix.
#define OTHER 64

// Begins to copy rows [ROWS, D] into a tile; rows from `there` on become zeros.
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_tile(u32 to, const bf16 *from, int stride, int there) {
    constexpr int CHUNKS = D / 8;
#pragma unroll
    for (int i = 0; i < (ROWS * CHUNKS + THREADS - 1) / THREADS; i++) {
        const int chunk = threadIdx.x + i * THREADS, row = chunk / CHUNKS, column = chunk % CHUNKS * 8;
        if (ROWS * CHUNKS % THREADS != 0 && row >= ROWS) break;
        copy16(to + (row * (D + 8) + column) * 2, from + (min(row, there - 1) * stride + column), row < there);
    }
}

// Where a lane reads matrices of a tile: rows as rows of a first operand (also: turned, as rows that a product sums over), or as columns of
// a second operand.
template <int D>
__device__ __forceinline__ u32 first_operand_place(u32 tile) {
    const int lane = threadIdx.x % 32;
    return tile + (lane % 16 * (D + 8) + lane / 16 * 8) * 2;
}

template <int D>
__device__ __forceinline__ u32 second_operand_place(u32 tile) {
    const int lane = threadIdx.x % 32;
    return tile + ((lane % 8 + lane / 16 * 8) * (D + 8) + lane / 8 % 2 * 8) * 2;
}

// scores [16, 8 N] += a [16, D] b [8 N, D]^T for each of M first operands. `a(k, m, operand)` gives 16 columns of one.
template <int D, int M, int N, class A>
__device__ __forceinline__ void multiply_by_rows(float (&scores)[M][N][4], u32 place, A a) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        u32 left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) a(k, m, left[m]);
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            u32 right[4];
            load_matrices(right, place + (n * 16 * (D + 8) + k * 16) * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(scores[m][2 * n], left[m], right[0], right[1]);
                multiply_add(scores[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// sums [16, D] += p [16, 8 N] b [8 N, D] for each of M first operands, which are accumulators that become bf16 here.
template <int D, int M, int N>
__device__ __forceinline__ void multiply_by_columns(float (&sums)[M][D / 8][4], const float (&p)[M][N][4], u32 place) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        u32 left[M][4];
#pragma unroll
        for (int m = 0; m < M; m++) {
            left[m][0] = pair_of_bf16(p[m][2 * k][0], p[m][2 * k][1]), left[m][1] = pair_of_bf16(p[m][2 * k][2], p[m][2 * k][3]);
            left[m][2] = pair_of_bf16(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
            left[m][3] = pair_of_bf16(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            u32 right[4];
            load_matrices_turned(right, place + (k * 16 * (D + 8) + n * 16) * 2);
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add(sums[m][2 * n], left[m], right[0], right[1]);
                multiply_add(sums[m][2 * n + 1], left[m], right[2], right[3]);
            }
        }
    }
}

// y [tokens, heads * D] with a stride, and sums [tokens, heads] f32 (or null). `firsts` and `lengths` are those of a cache, or null, as in the plain kernel.
// Tiles of M * WARPS * 16 queries. Grid (heads, capacity), block WARPS * 32, shared memory (M * WARPS * 16 + 128) (D + 8) bf16.
template <int D, int M, int WARPS>
__device__ __forceinline__ void attend(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads,
                                       int kv_heads, const int *starts, const int *firsts, const int *lengths, const int2 *tiles,
                                       int is_causal, float scale, bf16 *y, int y_stride, float *sums) {
    constexpr int ROWS = M * WARPS * 16, THREADS = WARPS * 32;
    // Queries stay in registers where those are enough.
    constexpr bool KEEPS = M * D <= 160;
    DYNAMIC_SHARED;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int head = blockIdx.x, kv = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = starts[tile.x], queries = starts[tile.x + 1] - begin, first = tile.y * ROWS, rows = min(ROWS, queries - first);
    const int first_key = firsts ? firsts[tile.x] : begin, keys = lengths ? lengths[tile.x] : queries, before = keys - queries;
    const int seen = is_causal ? min(keys, before + first + rows) : keys, count = (seen + OTHER - 1) / OTHER;
    q += (i64)(begin + first) * q_stride + head * D;
    k += (i64)first_key * k_stride + kv * D, v += (i64)first_key * v_stride + kv * D;
    const u32 query_tile = shared_address(dynamic_shared), key_tile = query_tile + ROWS * (D + 8) * 2;
    const u32 value_tile = key_tile + OTHER * (D + 8) * 2;
    const u32 query_place = first_operand_place<D>(query_tile + warp * M * 16 * (D + 8) * 2);
    const u32 key_place = second_operand_place<D>(key_tile), value_place = first_operand_place<D>(value_tile);

    copy_tile<D, ROWS, THREADS>(query_tile, q, q_stride, rows);
    copy_tile<D, OTHER, THREADS>(key_tile, k, k_stride, seen);
    commit_copies();
    copy_tile<D, OTHER, THREADS>(value_tile, v, v_stride, seen);
    commit_copies();

    const float factor = scale * LOG2_E;
    float mix[M][D / 8][4] = {}, top[M][2], total[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) top[m][0] = top[m][1] = __int_as_float(0xff800000), total[m][0] = total[m][1] = 0.0f;
    u32 kept[KEEPS ? D / 16 : 1][M][4];
    for (int j = 0; j < count; j++) {
        // The keys are there; the values may still come.
        wait_for_copies<1>();
        __syncthreads();
        if (j > 0) {
            copy_tile<D, OTHER, THREADS>(value_tile, v + (i64)j * OTHER * v_stride, v_stride, seen - j * OTHER);
            commit_copies();
        } else if (KEEPS) {
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
#pragma unroll
                for (int m = 0; m < M; m++) load_matrices(kept[k][m], query_place + (m * 16 * (D + 8) + k * 16) * 2);
            }
        }
        float scores[M][OTHER / 8][4] = {};
        multiply_by_rows<D>(scores, key_place, [&](int k, int m, u32(&to)[4]) {
            if constexpr (KEEPS) {
#pragma unroll
                for (int i = 0; i < 4; i++) to[i] = kept[k][m][i];
            } else {
                load_matrices(to, query_place + (m * 16 * (D + 8) + k * 16) * 2);
            }
        });
        wait_for_copies<0>();
        __syncthreads();
        if (j + 1 < count) copy_tile<D, OTHER, THREADS>(key_tile, k + (i64)(j + 1) * OTHER * k_stride, k_stride, seen - (j + 1) * OTHER);
        commit_copies();
        // An empty group in place of the values', which begin when their tile is free: the keys' group is always the last but one.
        commit_copies();

        const int everyone = is_causal ? before + first + 1 : keys;
        if ((j + 1) * OTHER > everyone) {
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < OTHER / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const int row = first + (warp * M + m) * 16 + g + i / 2 * 8, key = j * OTHER + n * 8 + t * 2 + i % 2;
                        if (key >= (is_causal ? min(keys, before + row + 1) : keys)) scores[m][n][i] = __int_as_float(0xff800000);
                    }
                }
            }
        }
        float shrink[M][2];
        bool is_same = true;
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float highest = top[m][half];
#pragma unroll
                for (int n = 0; n < OTHER / 8; n++) highest = fmaxf(highest, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 1));
                highest = fmaxf(highest, __shfl_xor_sync(ALL_LANES, highest, 2));
                is_same &= highest == top[m][half];
                shrink[m][half] = exp2_fast((top[m][half] - highest) * factor);
                top[m][half] = highest, total[m][half] *= shrink[m][half];
            }
        }
        // After the first tiles the highest scores seldom change, and multiplying by one can be left out.
        if (!__all_sync(ALL_LANES, is_same)) {
#pragma unroll
            for (int m = 0; m < M; m++) {
#pragma unroll
                for (int n = 0; n < D / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) mix[m][n][i] *= shrink[m][i / 2];
                }
            }
        }
#pragma unroll
        for (int m = 0; m < M; m++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float base = top[m][half] * factor;
                float sum = 0.0f;
#pragma unroll
                for (int n = 0; n < OTHER / 8; n++) {
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float p = exp2_fast(scores[m][n][2 * half + i] * factor - base);
                        scores[m][n][2 * half + i] = p;
                        sum += p;
                    }
                }
                total[m][half] += sum;
            }
        }
        multiply_by_columns<D>(mix, scores, value_place);
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            total[m][half] += __shfl_xor_sync(ALL_LANES, total[m][half], 1);
            total[m][half] += __shfl_xor_sync(ALL_LANES, total[m][half], 2);
        }
        const int own = (warp * M + m) * 16;
        if (sums && t == 0) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = own + g + 8 * half;
                if (row < rows) sums[(i64)(begin + first + row) * heads + head] = top[m][half] * scale + logf(total[m][half]);
            }
        }
        // The rows of the query tile that only this warp reads.
        bf16 *to = y + (i64)(begin + first + own) * y_stride + head * D;
        write_rows<D>(mix[m], 1.0f / total[m][0], 1.0f / total[m][1], dynamic_shared + own * (D + 8) * 2, to, y_stride, rows - own);
    }
}

// dq, with a stride of its own; dy [tokens, heads * D], sums and along [tokens, heads] f32. A warp has 16 queries and keeps them, and what
// came back to them, in registers. Tiles of WARPS * 16 queries, those of the forward pass if it has as many.
// Grid (heads, capacity), block WARPS * 32, shared memory 256 (D + 8) bf16: two pairs of tiles of keys and values.
template <int D, int WARPS>
__device__ __forceinline__ void attend_backward_queries(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride,
                                                        int heads, int kv_heads, const int *starts, const int2 *tiles, int is_causal,
                                                        float scale, const bf16 *dy, const float *sums, const float *along, bf16 *dq,
                                                        int dq_stride) {
    constexpr int ROWS = WARPS * 16, THREADS = WARPS * 32;
    DYNAMIC_SHARED;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int head = blockIdx.x, kv = head / (heads / kv_heads), warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = starts[tile.x], keys = starts[tile.x + 1] - begin, first = tile.y * ROWS, rows = min(ROWS, keys - first);
    const int seen = is_causal ? first + rows : keys, count = (seen + OTHER - 1) / OTHER;
    k += (i64)begin * k_stride + kv * D, v += (i64)begin * v_stride + kv * D;
    constexpr u32 TILE = OTHER * (D + 8) * 2;
    const u32 tiles_of_keys = shared_address(dynamic_shared);
    copy_tile<D, OTHER, THREADS>(tiles_of_keys, k, k_stride, seen);
    copy_tile<D, OTHER, THREADS>(tiles_of_keys + TILE, v, v_stride, seen);
    commit_copies();

    // This lane's rows, clamped: what a row beyond the last computes is never written.
    const int low = min(warp * 16 + g, rows - 1), high = min(warp * 16 + g + 8, rows - 1);
    u32 query[D / 16][4], given[D / 16][4];
    float log[2], own[2];
    {
        const bf16 *q_low = q + (i64)(begin + first + low) * q_stride + head * D, *q_high = q + (i64)(begin + first + high) * q_stride + head * D;
        const i64 row_low = (i64)(begin + first + low) * heads + head, row_high = (i64)(begin + first + high) * heads + head;
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            const int column = n * 16 + t * 2;
            query[n][0] = *(const u32 *)(q_low + column), query[n][1] = *(const u32 *)(q_high + column);
            query[n][2] = *(const u32 *)(q_low + column + 8), query[n][3] = *(const u32 *)(q_high + column + 8);
            given[n][0] = *(const u32 *)(dy + row_low * D + column), given[n][1] = *(const u32 *)(dy + row_high * D + column);
            given[n][2] = *(const u32 *)(dy + row_low * D + column + 8), given[n][3] = *(const u32 *)(dy + row_high * D + column + 8);
        }
        log[0] = sums[row_low] * LOG2_E, log[1] = sums[row_high] * LOG2_E, own[0] = along[row_low], own[1] = along[row_high];
    }
    const float factor = scale * LOG2_E;
    // Keys that this lane's rows see, counted from its first column.
    int limit[2];
#pragma unroll
    for (int half = 0; half < 2; half++) limit[half] = (is_causal ? min(keys, first + warp * 16 + g + 8 * half + 1) : keys) - t * 2;
    float gradient[1][D / 8][4] = {};
    for (int j = 0; j < count; j++) {
        wait_for_copies<0>();
        __syncthreads();
        const u32 here = tiles_of_keys + j % 2 * 2 * TILE, there = tiles_of_keys + (j + 1) % 2 * 2 * TILE;
        if (j + 1 < count) {
            copy_tile<D, OTHER, THREADS>(there, k + (i64)(j + 1) * OTHER * k_stride, k_stride, seen - (j + 1) * OTHER);
            copy_tile<D, OTHER, THREADS>(there + TILE, v + (i64)(j + 1) * OTHER * v_stride, v_stride, seen - (j + 1) * OTHER);
        }
        commit_copies();
        float p[1][OTHER / 8][4] = {}, ds[1][OTHER / 8][4] = {};
        multiply_by_rows<D>(p, second_operand_place<D>(here), [&](int n, int, u32(&to)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = query[n][i];
        });
        // The second product does not wait for the exponentials: a branch between them would make it.
#pragma unroll
        for (int n = 0; n < OTHER / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const bool sees = n * 8 + i % 2 < limit[i / 2] - j * OTHER;
                p[0][n][i] = sees ? exp2_fast(p[0][n][i] * factor - log[i / 2]) : 0.0f;
            }
        }
        multiply_by_rows<D>(ds, second_operand_place<D>(here + TILE), [&](int n, int, u32(&to)[4]) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[i] = given[n][i];
        });
#pragma unroll
        for (int n = 0; n < OTHER / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) ds[0][n][i] = p[0][n][i] * (ds[0][n][i] - own[i / 2]);
        }
        multiply_by_columns<D>(gradient, ds, first_operand_place<D>(here));
    }
    // Every warp must be done with the keys before their place is used to write.
    __syncthreads();
    bf16 *to = dq + (i64)(begin + first + warp * 16) * dq_stride + head * D;
    write_rows<D>(gradient[0], scale, scale, dynamic_shared + warp * 16 * (D + 8) * 2, to, dq_stride, rows - warp * 16);
}

// dk and dv, each with a stride of its own. A block has 64 keys, a warp 16 of them as rows of the scores, and goes through all queries that
// see them, of heads / kv_heads / splits query heads. Where splits is 1 it writes dk and dv; else each block writes f32 sums to
// partial [2, splits, tokens, kv_heads, D] (keys, then values), which `attend_add_splits` adds. More splits are more blocks: take the
// smallest divisor of heads / kv_heads that gives a card enough of them.
// Tiles of 64 keys. Grid (kv_heads * splits, capacity), block 128, shared memory (128 + 4 QUERIES) (D + 8) bf16 and 4 QUERIES f32: keys and
// values, and two stages of queries, what came back to them, their logarithms and their sums along.
template <int D, int QUERIES>
__device__ __forceinline__ void attend_backward_keys(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride,
                                                     int heads, int kv_heads, const int *starts, const int2 *tiles, int is_causal, float scale,
                                                     const bf16 *dy, const float *sums, const float *along, bf16 *dk, int dk_stride, bf16 *dv,
                                                     int dv_stride, float *partial, int splits, int tokens) {
    constexpr int KEYS = 64, THREADS = 128;
    // Keys and values stay in registers where those are enough.
    constexpr bool KEEPS = D <= 80;
    constexpr u32 KEY_TILE = KEYS * (D + 8) * 2, TILE = QUERIES * (D + 8) * 2;
    DYNAMIC_SHARED;
    const int2 tile = tiles[blockIdx.y];
    if (tile.x < 0) return;
    const int kv = blockIdx.x / splits, split = blockIdx.x % splits, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int begin = starts[tile.x], queries = starts[tile.x + 1] - begin, first = tile.y * KEYS, rows = min(KEYS, queries - first);
    const int each = heads / kv_heads / splits;
    // Tiles of queries that see a key of this tile; the same for each head.
    const int first_tile = is_causal ? first / QUERIES : 0, end_tile = (queries + QUERIES - 1) / QUERIES;
    const u32 key_tile = shared_address(dynamic_shared), value_tile = key_tile + KEY_TILE, stages = value_tile + KEY_TILE;
    float *numbers = (float *)(dynamic_shared + 2 * KEY_TILE + 4 * TILE);

    // The head and the tile of queries that are copied next.
    int next_head = (kv * splits + split) * each, next_tile = first_tile;
    auto copy_next = [&](int stage) {
        const int at = next_tile * QUERIES, there = queries - at;
        copy_tile<D, QUERIES, THREADS>(stages + stage * 2 * TILE, q + (i64)(begin + at) * q_stride + next_head * D, q_stride, there);
        copy_tile<D, QUERIES, THREADS>(stages + stage * 2 * TILE + TILE, dy + ((i64)(begin + at) * heads + next_head) * D, heads * D, there);
        if (threadIdx.x < 2 * QUERIES) {
            const int row = threadIdx.x % QUERIES;
            const float *from = (threadIdx.x < QUERIES ? sums : along) + (i64)(begin + at + min(row, there - 1)) * heads + next_head;
            copy4(shared_address(numbers + stage * 2 * QUERIES + threadIdx.x), from, row < there);
        }
        if (++next_tile == end_tile) next_tile = first_tile, next_head++;
    };
    copy_tile<D, KEYS, THREADS>(key_tile, k + (i64)(begin + first) * k_stride + kv * D, k_stride, rows);
    copy_tile<D, KEYS, THREADS>(value_tile, v + (i64)(begin + first) * v_stride + kv * D, v_stride, rows);
    copy_next(0);
    commit_copies();

    const u32 key_place = first_operand_place<D>(key_tile + warp * 16 * (D + 8) * 2);
    const u32 value_place = first_operand_place<D>(value_tile + warp * 16 * (D + 8) * 2);
    const float factor = scale * LOG2_E;
    float sum_k[1][D / 8][4] = {}, sum_v[1][D / 8][4] = {};
    u32 kept[KEEPS ? D / 16 : 1][2][4];
    const int count = each * (end_tile - first_tile);
    for (int i = 0, this_tile = first_tile; i < count; i++) {
        // One barrier: what comes is there, and what the next stage held is used up.
        wait_for_copies<0>();
        __syncthreads();
        if (i + 1 < count) copy_next((i + 1) % 2);
        commit_copies();
        if (KEEPS && i == 0) {
#pragma unroll
            for (int n = 0; n < D / 16; n++) load_matrices(kept[n][0], key_place + n * 32), load_matrices(kept[n][1], value_place + n * 32);
        }
        const u32 query_tile = stages + i % 2 * 2 * TILE, given_tile = query_tile + TILE;
        float p[1][QUERIES / 8][4] = {}, ds[1][QUERIES / 8][4] = {};
        multiply_by_rows<D>(p, second_operand_place<D>(query_tile), [&](int n, int, u32(&to)[4]) {
            if constexpr (KEEPS) {
#pragma unroll
                for (int i = 0; i < 4; i++) to[i] = kept[n][0][i];
            } else {
                load_matrices(to, key_place + n * 32);
            }
        });
        // The second product does not wait for the exponentials: a branch between them would make it.
        const float *logs = numbers + i % 2 * 2 * QUERIES, *owns = logs + QUERIES;
        const int ahead = is_causal ? this_tile * QUERIES - first + t * 2 - warp * 16 - g : KEYS;
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            const float2 log = *(const float2 *)(logs + n * 8 + t * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const bool sees = ahead >= j / 2 * 8 - n * 8 - j % 2;
                p[0][n][j] = sees ? exp2_fast(p[0][n][j] * factor - (j % 2 ? log.y : log.x) * LOG2_E) : 0.0f;
            }
        }
        multiply_by_rows<D>(ds, second_operand_place<D>(given_tile), [&](int n, int, u32(&to)[4]) {
            if constexpr (KEEPS) {
#pragma unroll
                for (int i = 0; i < 4; i++) to[i] = kept[n][1][i];
            } else {
                load_matrices(to, value_place + n * 32);
            }
        });
#pragma unroll
        for (int n = 0; n < QUERIES / 8; n++) {
            const float2 own = *(const float2 *)(owns + n * 8 + t * 2);
#pragma unroll
            for (int j = 0; j < 4; j++) ds[0][n][j] = p[0][n][j] * (ds[0][n][j] - (j % 2 ? own.y : own.x));
        }
        multiply_by_columns<D>(sum_v, p, first_operand_place<D>(given_tile));
        multiply_by_columns<D>(sum_k, ds, first_operand_place<D>(query_tile));
        if (++this_tile == end_tile) this_tile = first_tile;
    }
    if (splits == 1) {
        // The rows of these tiles that only this warp reads.
        const int own = warp * 16;
        u8 *room = dynamic_shared + own * (D + 8) * 2;
        write_rows<D>(sum_k[0], scale, scale, room, dk + (i64)(begin + first + own) * dk_stride + kv * D, dk_stride, rows - own);
        write_rows<D>(sum_v[0], 1.0f, 1.0f, room + KEY_TILE, dv + (i64)(begin + first + own) * dv_stride + kv * D, dv_stride, rows - own);
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
            *(float2 *)(to + n * 8) = make_float2(sum_k[0][n][2 * half] * scale, sum_k[0][n][2 * half + 1] * scale);
            *(float2 *)(to + splits * size + n * 8) = make_float2(sum_v[0][n][2 * half], sum_v[0][n][2 * half + 1]);
        }
    }
}

#define FORWARD(D, TILE, M, BLOCKS)                                                                                                     \
    extern "C" __global__ void __launch_bounds__(128, BLOCKS)                                                                        \
        attend_##D##_##TILE(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads,        \
                            int kv_heads, const int *starts, const int *firsts, const int *lengths, const int2 *tiles,               \
                            int is_causal, float scale, bf16 *y, int y_stride, float *sums) {                                        \
        attend<D, M, 4>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, firsts, lengths, tiles, is_causal, scale, y, \
                        y_stride, sums);                                                                                             \
    }

#define BACKWARD_QUERIES(D, TILE, WARPS, BLOCKS)                                                                                     \
    extern "C" __global__ void __launch_bounds__(WARPS * 32, BLOCKS)                                                                  \
        attend_backward_queries_##D##_##TILE(const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride,  \
                                             int heads, int kv_heads, const int *starts, const int2 *tiles, int is_causal,           \
                                             float scale, const bf16 *dy, const float *sums, const float *along, bf16 *dq,           \
                                             int dq_stride) {                                                                        \
        attend_backward_queries<D, WARPS>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, tiles, is_causal, scale,   \
                                          dy, sums, along, dq, dq_stride);                                                           \
    }

#define BACKWARD_KEYS(D, QUERIES)                                                                                                             \
    extern "C" __global__ void __launch_bounds__(128, 2) attend_backward_keys_##D##_##QUERIES(                                        \
        const bf16 *q, int q_stride, const bf16 *k, int k_stride, const bf16 *v, int v_stride, int heads, int kv_heads,              \
        const int *starts, const int2 *tiles, int is_causal, float scale, const bf16 *dy, const float *sums, const float *along,     \
        bf16 *dk, int dk_stride, bf16 *dv, int dv_stride, float *partial, int splits, int tokens) {                                  \
        attend_backward_keys<D, QUERIES>(q, q_stride, k, k_stride, v, v_stride, heads, kv_heads, starts, tiles, is_causal, scale, dy, sums,   \
                                along, dk, dk_stride, dv, dv_stride, partial, splits, tokens);                                       \
    }

// Tiles of 128 for long segments; of 64 for short ones (windows), which would leave half of a larger tile empty.
// Fewer registers let more small blocks share a multiprocessor. Each head size is a program of its own, so that they compile side by side.
#if HEAD_SIZE == 64
FORWARD(64, 128, 2, 2)
FORWARD(64, 64, 1, 4)
BACKWARD_QUERIES(64, 128, 8, 1)
BACKWARD_QUERIES(64, 64, 4, 3)
BACKWARD_KEYS(64, 64)
#elif HEAD_SIZE == 80
FORWARD(80, 128, 2, 2)
FORWARD(80, 64, 1, 4)
BACKWARD_QUERIES(80, 128, 8, 1)
BACKWARD_QUERIES(80, 64, 4, 3)
BACKWARD_KEYS(80, 64)
#else
FORWARD(128, 128, 2, 2)
FORWARD(128, 64, 1, 2)
BACKWARD_QUERIES(128, 128, 8, 1)
BACKWARD_QUERIES(128, 64, 4, 2)
// The second is faster where a multiprocessor has 212 KiB of shared memory, enough for two of its blocks (9.0, 10.0).
BACKWARD_KEYS(128, 32)
BACKWARD_KEYS(128, 64)
#endif
