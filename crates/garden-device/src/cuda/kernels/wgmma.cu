// Warpgroup products of Hopper (compute capability 9.0a): four warps multiply tiles of shared memory, and go on while the tensor cores work.
//
// A tile of [ROWS, D] bf16 lies in parts of 64 values: a row of a part is 128 bytes, and the 16-byte chunks of row r are exchanged by r % 8, so that neither the copies
// of rows nor the tensor cores, which read the same chunk of eight rows, meet in a bank. Heads of 80 have a last part of 16 values, 32 bytes a row, whose two chunks are
// exchanged in every other four rows. One layout serves products that sum over D and products that sum over rows. 64 rows of results belong to a warpgroup, 16 to each
// warp, in the layout of `multiply_add`. Tiles begin at multiples of 1024 bytes.

// How chunks are exchanged in rows of 128 and of 32 bytes, as descriptors tell it.
#define EXCHANGE_128 (1ull << 62)
#define EXCHANGE_32 (3ull << 62)

// Values as the tensor cores find them: an address, and the distances between parts (where a product goes across them) and between groups of eight rows.
__device__ __forceinline__ u64 values_at(u32 address, u32 parts, u32 groups) {
    return (u64)(address >> 4) | (u64)(parts >> 4) << 16 | (u64)(groups >> 4) << 32;
}

// Number k of 16 values of all rows, as an operand of products that sum over values.
template <int D, int ROWS>
__device__ __forceinline__ u64 values_of_rows(u32 tile, int k) {
    constexpr int WIDE = D / 64 * 4;
    if (k >= WIDE) return values_at(tile + WIDE * ROWS * 32, 16, 256) | EXCHANGE_32;
    return values_at(tile + k / 4 * ROWS * 128 + k % 4 * 32, 16, 1024) | EXCHANGE_128;
}

// Number k of 16 rows, as an operand of products that sum over rows: the parts of 64 values, or the last part of 16.
template <int D, int ROWS>
__device__ __forceinline__ u64 rows_of_values(u32 tile, int k) {
    return values_at(tile + k * 16 * 128, ROWS * 128, 1024) | EXCHANGE_128;
}
template <int D, int ROWS>
__device__ __forceinline__ u64 rows_of_last_values(u32 tile, int k) {
    return values_at(tile + D / 64 * ROWS * 128 + k * 16 * 32, 16, 256) | EXCHANGE_32;
}

// Makes registers and shared memory that this thread wrote visible to the products that follow.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Ends a group of products.
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Copies to shared memory of this thread become visible to products, after a barrier those of the others too.
__device__ __forceinline__ void show_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Waits until at most PENDING groups of products are under way. The results have to pass `settle` before they are used.
template <int PENDING>
__device__ __forceinline__ void wait_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from using results before the wait.
template <int N>
__device__ __forceinline__ void settle(float (&c)[N][4]) {
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(c[n][i])::"memory");
    }
}

#define FOUR(n) "+f"(c[n][0]), "+f"(c[n][1]), "+f"(c[n][2]), "+f"(c[n][3])
#define SIXTY_FOUR FOUR(0), FOUR(1), FOUR(2), FOUR(3), FOUR(4), FOUR(5), FOUR(6), FOUR(7)
#define ALL_128 SIXTY_FOUR, FOUR(8), FOUR(9), FOUR(10), FOUR(11), FOUR(12), FOUR(13), FOUR(14), FOUR(15)

// c [64, 64] = a [64, 16] b [64, 16]^T of two tiles, added to c if `adds`.
__device__ __forceinline__ void multiply_tiles(float (&c)[8][4], u64 a, u64 b, int adds) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
        : SIXTY_FOUR
        : "l"(a), "l"(b), "r"(adds));
}

// c [64, 64] += a [64, 16] of registers, as in `multiply_add`, times b [16, 64] of a tile; c may have more columns behind these.
template <int N>
__device__ __forceinline__ void multiply_64_columns(float (&c)[N][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
        : SIXTY_FOUR
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// The same with 128 columns.
__device__ __forceinline__ void multiply_128_columns(float (&c)[16][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, "
        "%24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, "
        "%46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
        : ALL_128
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// The same with columns 64 to 79.
__device__ __forceinline__ void multiply_last_columns(float (&c)[10][4], const u32 (&a)[4], u64 b) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\nwgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, {%8, %9, %10, %11}, %12, p, 1, 1, 1;\n}\n"
        : FOUR(8), FOUR(9)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(1));
}

// Products with whole tiles. scores [64, 64] = a [64, D] b [64, D]^T.
template <int D>
__device__ __forceinline__ void multiply_rows_of_tiles(float (&scores)[8][4], u32 a, u32 b) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) multiply_tiles(scores, values_of_rows<D, 64>(a, k), values_of_rows<D, 64>(b, k), k > 0);
}

// Accumulators as first operands of the next product, which have the same layout.
template <int N>
__device__ __forceinline__ void operands_of(u32 (&to)[N / 2][4], const float (&p)[N][4]) {
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        to[k][0] = pair_of_bf16(p[2 * k][0], p[2 * k][1]), to[k][1] = pair_of_bf16(p[2 * k][2], p[2 * k][3]);
        to[k][2] = pair_of_bf16(p[2 * k + 1][0], p[2 * k + 1][1]), to[k][3] = pair_of_bf16(p[2 * k + 1][2], p[2 * k + 1][3]);
    }
}

// sums [64, D] += p [64, 16 K] b [16 K, D].
template <int D, int K>
__device__ __forceinline__ void multiply_columns_of_tile(float (&sums)[D / 8][4], const u32 (&p)[K][4], u32 b) {
    constexpr int ROWS = 16 * K;
#pragma unroll
    for (int k = 0; k < K; k++) {
        if constexpr (D == 128) multiply_128_columns(sums, p[k], rows_of_values<D, ROWS>(b, k));
        else multiply_64_columns(sums, p[k], rows_of_values<D, ROWS>(b, k));
        if constexpr (D == 80) multiply_last_columns(sums, p[k], rows_of_last_values<D, ROWS>(b, k));
    }
}

// Begins to copy rows [ROWS, D] into a tile; rows from `there` on become zeros.
template <int D, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(u32 to, const bf16 *from, int stride, int there) {
    constexpr int CHUNKS = D / 8, ALL = ROWS * CHUNKS, WIDE = D / 64 * 8;
#pragma unroll
    for (int i = 0; i < (ALL + THREADS - 1) / THREADS; i++) {
        const int number = threadIdx.x + i * THREADS, row = number / CHUNKS, chunk = number % CHUNKS;
        if (ALL % THREADS != 0 && number >= ALL) break;
        const int wide = chunk / 8 * ROWS * 128 + row * 128 + (chunk % 8 ^ row % 8) * 16;
        const int last = WIDE * ROWS * 16 + row * 32 + (chunk % 2 ^ row / 4 % 2) * 16;
        copy16(to + (chunk < WIDE ? wide : last), from + (min(row, there - 1) * stride + chunk * 8), row < there);
    }
}
