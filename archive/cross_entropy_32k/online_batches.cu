// Mean cross entropy over a large vocabulary in one read of the logits: one block a row, each thread with a running maximum and sum, BATCH float4
// at a time and the next BATCH on their way meanwhile. A second, single block adds the losses in a fixed order; with OVERLAP it is already there
// when the last row ends.
//
// @tune BLOCK = 256 in 128 256 512 1024
// @tune BATCH = 4 in 2 4 8
// @tune RESIDENT = 4 in 1 2 4 6                              # blocks a multiprocessor has the registers for
// @tune OVERLAP = true in false true
// @require logits.contiguous and target.contiguous and logits.ndim == 2
// @const CLASSES = logits.shape[1]
// @require CLASSES % (4 * BLOCK * BATCH) == 0 and BLOCK * RESIDENT * (8 * BATCH + 24) <= device.regs_per_sm
// @scratch losses float32 [logits.shape[0], 2]               # loss, and 1 where the row counts
// @launch row_losses<<<logits.shape[0], BLOCK>>>(logits, target, losses)
// @launch mean_loss<<<1, 1024, 0, pdl=OVERLAP>>>(losses, out, logits.shape[0])

constexpr int BATCHES = CLASSES / (4 * BLOCK * BATCH);
constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float warp_maximum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, apart));
    return v;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

// -inf - -inf would be NaN where only this part of the row is masked.
__device__ __forceinline__ float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

// A maximum, and the sum of exp(value - maximum).
struct Online {
    float top, sum;
};

// A batch is taken in together, so that the old sum is scaled once for all of it.
__device__ __forceinline__ void take(Online& online, const float4 (&v)[BATCH])
{
    float top = online.top;
#pragma unroll
    for (int i = 0; i < BATCH; ++i) top = fmaxf(top, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    const float shift = shift_of(top);
    float sum = online.sum * expf(online.top - shift);
#pragma unroll
    for (int i = 0; i < BATCH; ++i) sum += (expf(v[i].x - shift) + expf(v[i].y - shift)) + (expf(v[i].z - shift) + expf(v[i].w - shift));
    online = {top, sum};
}

// Lets the next launch start, and waits for the one before; both do nothing where launches do not overlap. Older GPUs know neither.
__device__ __forceinline__ void allow_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_previous()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__global__ void __launch_bounds__(BLOCK, RESIDENT)
row_losses(const float4* __restrict__ logits, const long long* __restrict__ target, float2* __restrict__ losses)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* row = logits + (size_t)blockIdx.x * (CLASSES / 4);
    const float4* first = row + threadIdx.x;

    float4 v[BATCH], next[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) next[i] = __ldcs(first + i * BLOCK);
    allow_next();
    long long wanted = -1;
    float chosen = 0.0f;
    if (threadIdx.x == 0) {
        wanted = target[blockIdx.x];
        if (wanted >= 0 && wanted < CLASSES) chosen = ((const float*)row)[wanted];
    }

    Online online = {-INFINITY, 0.0f};
#pragma unroll 1
    for (int batch = 1; batch < BATCHES; ++batch) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) v[i] = next[i];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) next[i] = __ldcs(first + (batch * BATCH + i) * BLOCK);
        take(online, v);
    }
    take(online, next);

    const float highest = warp_maximum(online.top);
    const float sum = warp_sum(online.sum * expf(online.top - shift_of(highest)));
    if (lane == 0) {
        maxima[warp] = highest;
        sums[warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        const float others = lane < WARPS ? maxima[lane] : -INFINITY;
        const float top = warp_maximum(others);
        const float total = warp_sum(lane < WARPS ? sums[lane] * expf(others - top) : 0.0f);
        const bool counts = wanted >= 0 && wanted < CLASSES;  // a target of -100 is left out
        if (lane == 0) losses[blockIdx.x] = counts ? make_float2((top - chosen) + logf(total), 1.0f) : make_float2(0.0f, 0.0f);
    }
}

__global__ void __launch_bounds__(1024) mean_loss(const float2* losses, float* __restrict__ out, int rows)
{
    __shared__ float sums[32], counts[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    wait_for_previous();
    float sum = 0.0f, count = 0.0f;
    for (int i = threadIdx.x; i < rows; i += 1024) {
        const float2 loss = __ldcg(losses + i);
        sum += loss.x;
        count += loss.y;
    }
    sum = warp_sum(sum);
    count = warp_sum(count);
    if (lane == 0) {
        sums[warp] = sum;
        counts[warp] = count;
    }
    __syncthreads();
    if (warp == 0) {
        sum = warp_sum(sums[lane]);
        count = warp_sum(counts[lane]);
        if (lane == 0) *out = sum / count;
    }
}
