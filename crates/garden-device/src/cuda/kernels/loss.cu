// Cross entropy, and sums of losses and squares. All sums have a fixed order.

// Each row's loss for its target, whether that is the first of the largest logits (1 or 0), and the gradient of the loss scale times the summed losses in place of
// the logits [rows, width]. A row with a negative target is none: its loss, its hit and its gradient are 0.
// Grid (rows), block 1024. A thread keeps the highest of its logits and the sum of e^(logit - highest), so one pass finds both; the
// second pass writes the gradient.
template <class T>
__device__ void cross_entropy(T *logits, const int *targets, float *losses, float *hits, int width, const Scalars *scalars) {
    const float scale = scalars->loss_scale;
    logits += (i64)blockIdx.x * width;
    const int target = targets[blockIdx.x];
    const bool aligned = is_aligned(logits);
    if (target < 0) {
        each_of_row(width, aligned, [=](int column, auto count) {
            float none[decltype(count)::value] = {};
            store(logits + column, none);
        });
        if (threadIdx.x == 0) losses[blockIdx.x] = hits[blockIdx.x] = 0.0f;
        return;
    }
    const float asked = widen(logits[target]);
    float highest = __int_as_float(0xff800000), sum = 0.0f;
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(logits + column, a);
        float here = a[0];
#pragma unroll
        for (int i = 1; i < N; i++) here = fmaxf(here, a[i]);
        if (here > highest) {
            sum *= __expf(highest - here);
            highest = here;
        }
#pragma unroll
        for (int i = 0; i < N; i++) sum += __expf(a[i] - highest);
    });
    const float top = block_highest(highest);
    // A thread without logits has the sum 0, and e^-infinity is 0.
    const double total = block_sum((double)(sum * expf(highest - top)));
    const float factor = (float)(scale / total);
    bool is_earlier = false;
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(logits + column, a);
#pragma unroll
        for (int i = 0; i < N; i++) {
            is_earlier |= a[i] == top && column + i < target;
            a[i] = __expf(a[i] - top) * factor;
            if (column + i == target) a[i] -= scale;
        }
        store(logits + column, a);
    });
    const bool has_earlier = __syncthreads_or(is_earlier);
    if (threadIdx.x == 0) {
        losses[blockIdx.x] = (float)(log(total) + (double)top - (double)asked);
        hits[blockIdx.x] = asked >= top && !has_earlier ? 1.0f : 0.0f;
    }
}

extern "C" __global__ void cross_entropy_bf16(bf16 *logits, const int *targets, float *losses, float *hits, int width, const Scalars *scalars) {
    cross_entropy(logits, targets, losses, hits, width, scalars);
}

extern "C" __global__ void cross_entropy_f32(float *logits, const int *targets, float *losses, float *hits, int width, const Scalars *scalars) {
    cross_entropy(logits, targets, losses, hits, width, scalars);
}

// sums [2] += the loss scale times the sum of the losses [n], and the sum of the hits [n]. Grid (1), block 1024.
extern "C" __global__ void add_losses(const float *losses, const float *hits, float *sums, const Scalars *scalars, i64 n) {
    double own_losses = 0.0, own_hits = 0.0;
    for (i64 i = threadIdx.x; i < n; i += blockDim.x) {
        own_losses += losses[i];
        own_hits += hits[i];
    }
    const double all_losses = block_sum(own_losses), all_hits = block_sum(own_hits);
    if (threadIdx.x == 0) {
        sums[0] = (float)((double)sums[0] + (double)scalars->loss_scale * all_losses);
        sums[1] = (float)((double)sums[1] + all_hits);
    }
}

// partial [blocks] = sums of squares of the parts of x [n]. Grid min(512, ceil(n / 2048)), block 256: the grid is the order of the sum, so it
// must depend on n alone.
extern "C" __global__ void squares(const float *x, double *partial, i64 n) {
    double own = 0.0;
    each_value(n, is_aligned(x), [&](i64 at, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N], few = 0.0f;
        load(x + at, a);
#pragma unroll
        for (int i = 0; i < N; i++) few += a[i] * a[i];
        own += few;
    });
    own = block_sum(own);
    if (threadIdx.x == 0) partial[blockIdx.x] = own;
}

// sum [1] += the partial sums, in their order. Grid (1), block 512.
extern "C" __global__ void add_squares(const double *partial, float *sum, int pieces) {
    const double all = block_sum((int)threadIdx.x < pieces ? partial[threadIdx.x] : 0.0);
    if (threadIdx.x == 0) sum[0] += (float)all;
}

// The place of the largest of each row of logits [rows, width], the first of equal ones; -1 where it is not finite. What is no number is passed
// over. Grid (rows), block 1024.
extern "C" __global__ void best_of_rows_bf16(const bf16 *logits, int *best, int width) {
    __shared__ int first;
    logits += (i64)blockIdx.x * width;
    const bool aligned = is_aligned(logits);
    float highest = __int_as_float(0xff800000);
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(logits + column, a);
#pragma unroll
        // fmaxf takes the other one where one is no number.
        for (int i = 0; i < N; i++) highest = fmaxf(highest, a[i]);
    });
    const float top = block_highest(highest);
    if (threadIdx.x == 0) first = width;
    __syncthreads();
    int own = width;
    each_of_row(width, aligned, [&](int column, auto count) {
        constexpr int N = decltype(count)::value;
        float a[N];
        load(logits + column, a);
#pragma unroll
        for (int i = N - 1; i >= 0; i--) {
            if (a[i] == top) own = min(own, column + i);
        }
    });
    // The least of numbers does not depend on the order.
    if (own < width) atomicMin(&first, own);
    __syncthreads();
    if (threadIdx.x == 0) best[blockIdx.x] = isfinite(top) && first < width ? first : -1;
}
