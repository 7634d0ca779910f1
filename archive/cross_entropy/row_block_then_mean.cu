// Mean cross entropy with one block a row and the row in registers: the logits are read once and nothing of their size is written. A second,
// single block adds the losses in a fixed order; it may be launched early (OVERLAP) and then waits for the rows itself.
//
// @tune BLOCK = 512 in 256 512 1024
// @tune OVERLAP = false in false true
// @require logits.contiguous and target.contiguous and logits.ndim == 2
// @const CLASSES = logits.shape[1]
// @require CLASSES % (4 * BLOCK) == 0 and CLASSES <= 64 * BLOCK
// @scratch losses float32 [logits.shape[0], 2]               # loss, and 1 where the row counts
// @launch row_losses<<<logits.shape[0], BLOCK>>>(logits, target, losses)
// @launch mean_loss<<<1, 1024, 0, pdl=OVERLAP>>>(losses, out, logits.shape[0])

constexpr int VECTORS = CLASSES / (4 * BLOCK);  // float4 a thread
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

// Waits until the launch before this one has ended and its writes can be seen; nothing where the launch did not overlap.
__device__ __forceinline__ void wait_for_rows() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

__global__ void __launch_bounds__(BLOCK)
row_losses(const float4* __restrict__ logits, const long long* __restrict__ target, float2* __restrict__ losses)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* row = logits + (size_t)blockIdx.x * (CLASSES / 4);

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(row + threadIdx.x + i * BLOCK);
    long long wanted = -1;
    float chosen = 0.0f;
    if (threadIdx.x == 0) {
        wanted = target[blockIdx.x];
        if (wanted >= 0 && wanted < CLASSES) chosen = ((const float*)row)[wanted];
    }

    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) highest = fmaxf(highest, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    highest = warp_maximum(highest);
    const float shift = highest == -INFINITY ? 0.0f : highest;  // -inf - -inf would be NaN where only this warp's part is masked
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum += (expf(v[i].x - shift) + expf(v[i].y - shift)) + (expf(v[i].z - shift) + expf(v[i].w - shift));
    sum = warp_sum(sum);
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
    wait_for_rows();
    float sum = 0.0f, count = 0.0f;
    for (int i = threadIdx.x; i < rows; i += 1024) {
        const float2 loss = losses[i];
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
