// What the kernels of attention on tensor cores share (attention.cu, attention_hopper.cu).

#define LOG2_E 1.4426950408889634f

// Writes 16 rows [16, D] of a warp: to a part of shared memory that it has for itself, and from there in whole rows.
template <int D>
__device__ __forceinline__ void write_rows(const float (&sums)[D / 8][4], float low_factor, float high_factor, u8 *shared, bf16 *to,
                                           i64 stride, int rows) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u32 *words = (u32 *)shared;
    constexpr int WORDS = (D + 8) / 2;
    // Lanes may still read what lies there.
    __syncwarp();
#pragma unroll
    for (int n = 0; n < D / 8; n++) {
        words[g * WORDS + n * 4 + t] = pair_of_bf16(sums[n][0] * low_factor, sums[n][1] * low_factor);
        words[(g + 8) * WORDS + n * 4 + t] = pair_of_bf16(sums[n][2] * high_factor, sums[n][3] * high_factor);
    }
    __syncwarp();
    for (int chunk = lane; chunk < 16 * (D / 8); chunk += 32) {
        const int row = chunk / (D / 8), column = chunk % (D / 8) * 8;
        if (row < rows) *(uint4 *)(to + row * stride + column) = *(const uint4 *)(shared + (row * (D + 8) + column) * 2);
    }
    __syncwarp();
}
