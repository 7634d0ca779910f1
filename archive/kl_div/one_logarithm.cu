// Kullback-Leibler divergence in one read of both inputs, as t * log(t / p): one logarithm an element instead of two, which is also more accurate
// than the difference of two large ones. Blocks add their stretch, a second launch of one block adds the blocks' sums in a fixed order; with OVERLAP
// it is already there when the last block ends. Both inputs are probabilities, at or above zero.
//
// @tune BLOCK = 128 in 128 256 512
// @tune BATCH = 1 in 1 2 4                                   # float4 of each input on their way while as many are worked on
// @tune BATCHES = 2 in 1 2 4 8                              # a block
// @tune RESIDENT = 2 in 1 2 4 8                              # blocks a multiprocessor has the registers for
// @tune OVERLAP = true in false true
// @require predictions.contiguous and targets.contiguous and predictions.numel == targets.numel
// @require targets.numel % (4 * BLOCK * BATCH * BATCHES) == 0
// @require BLOCK * RESIDENT * (16 * BATCH + 24) <= device.regs_per_sm
// @const BLOCKS = targets.numel // (4 * BLOCK * BATCH * BATCHES)
// @scratch sums float32 [BLOCKS]
// @launch add<<<BLOCKS, BLOCK>>>(predictions, targets, sums)
// @launch mean<<<1, 1024, 0, pdl=OVERLAP>>>(sums, out, 1.0 / targets.shape[0])

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

// The sum over all threads; `warps` has room for a value of each of the WARPS warps.
template <int WARPS> __device__ __forceinline__ float block_sum(float v, float* warps)
{
    const int lane = threadIdx.x % 32;
    v = warp_sum(v);
    if (lane == 0) warps[threadIdx.x / 32] = v;
    __syncthreads();
    return warp_sum(lane < WARPS ? warps[lane] : 0.0f);
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

// 0 for a target of 0, as in torch, unless the prediction is 0 too. The quick division is good to 2 ulp, 2e-7 of the logarithm.
__device__ __forceinline__ float divergence(float prediction, float target)
{
    const float information = target * logf(__fdividef(target, prediction));
    return target == 0.0f && prediction > 0.0f ? 0.0f : information;
}

__device__ __forceinline__ float divergence(float4 p, float4 t)
{
    return (divergence(p.x, t.x) + divergence(p.y, t.y)) + (divergence(p.z, t.z) + divergence(p.w, t.w));
}

__global__ void __launch_bounds__(BLOCK, RESIDENT)
add(const float4* __restrict__ predictions, const float4* __restrict__ targets, float* __restrict__ sums)
{
    __shared__ float warps[BLOCK / 32];
    const size_t first = (size_t)blockIdx.x * (BLOCK * BATCH * BATCHES) + threadIdx.x;
    float4 p[BATCH], t[BATCH], next_p[BATCH], next_t[BATCH];
#pragma unroll
    for (int i = 0; i < BATCH; ++i) {
        next_p[i] = __ldcs(predictions + first + i * BLOCK);
        next_t[i] = __ldcs(targets + first + i * BLOCK);
    }
    allow_next();
    float sum = 0.0f;
#pragma unroll 1
    for (int batch = 1; batch < BATCHES; ++batch) {
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            p[i] = next_p[i];
            t[i] = next_t[i];
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            next_p[i] = __ldcs(predictions + first + (batch * BATCH + i) * BLOCK);
            next_t[i] = __ldcs(targets + first + (batch * BATCH + i) * BLOCK);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) sum += divergence(p[i], t[i]);
    }
#pragma unroll
    for (int i = 0; i < BATCH; ++i) sum += divergence(next_p[i], next_t[i]);
    sum = block_sum<BLOCK / 32>(sum, warps);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(1024) mean(const float* sums, float* __restrict__ out, float factor)
{
    __shared__ float warps[32];
    wait_for_previous();
    float sum = 0.0f;
    for (int i = threadIdx.x; i < BLOCKS; i += 1024) sum += __ldcg(sums + i);
    sum = block_sum<32>(sum, warps);
    if (threadIdx.x == 0) *out = sum * factor;
}
