// What attention on tensor cores (attention.cu) needs around it: the list of its tiles, and sums of what blocks wrote apart.

// Lists tiles as (segment, number of the tile in it), the most work first, and (-1, 0) behind them.
// Each segment of n > 0 tokens has ceil(n / tile) of them; capacity = tokens / tile + segments is enough for all. With `is_causal` tile number
// i is worth i + 1 (queries) or, with `is_of_keys`, as much as the tiles from it to the last.
// Grid (ceil(capacity / 128)), block 128. The list depends on the starts alone: one serves all layers of a step.
extern "C" __global__ void attend_tiles(const int *starts, int segments, int tile, int is_causal, int is_of_keys, int capacity, int2 *tiles) {
    __shared__ int counts[128];
    const int own = blockIdx.x * blockDim.x + threadIdx.x;
    // starts[s] / tile + s rises by at least as much as segment s has tiles, so it can number them without a sum.
    int low = 0, high = segments;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (starts[middle] / tile + middle <= own) low = middle;
        else high = middle;
    }
    const int segment = low, number = own - (starts[low] / tile + low);
    const int count = (starts[low + 1] - starts[low] + tile - 1) / tile, work = is_causal ? number + 1 : count;
    // Its place is the number of tiles that come before it.
    int place = 0, all = 0;
    for (int first = 0; first < segments; first += 128) {
        const int load = first + threadIdx.x;
        __syncthreads();
        counts[threadIdx.x] = load < segments ? (starts[load + 1] - starts[load] + tile - 1) / tile : 0;
        __syncthreads();
        for (int i = 0; i < min(128, segments - first); i++) {
            const int other = first + i, others = counts[i];
            all += others;
            if (is_causal) place += max(0, others - work) + (other < segment && others >= work);
            else place += others > count || (others == count && other < segment) ? others : 0;
        }
    }
    if (own >= capacity) return;
    if (number < count) {
        if (is_causal) tiles[place] = make_int2(segment, is_of_keys ? count - work : number);
        else tiles[place + number] = make_int2(segment, number);
    }
    if (own >= all) tiles[own] = make_int2(-1, 0);
}

// dk and dv from partial [2, splits, tokens, width], in the order of the splits; width = kv_heads * D.
// Grid (ceil(width / 2048), min(tokens, 65535), 2), block 256.
extern "C" __global__ void attend_add_splits(const float *partial, int splits, int tokens, int width, bf16 *dk, i64 dk_stride, bf16 *dv,
                                             i64 dv_stride) {
    const i64 size = (i64)tokens * width, stride = blockIdx.z ? dv_stride : dk_stride;
    partial += blockIdx.z * splits * size;
    bf16 *to = blockIdx.z ? dv : dk;
    each_of_rows(tokens, width, is_aligned(to, stride) && is_aligned(partial, width), [=](int row, int column, auto count) {
        constexpr int N = decltype(count)::value;
        float sum[N] = {}, part[N];
        for (int split = 0; split < splits; split++) {
            load(partial + split * size + (i64)row * width + column, part);
#pragma unroll
            for (int i = 0; i < N; i++) sum[i] += part[i];
        }
        store(to + row * stride + column, sum);
    });
}
