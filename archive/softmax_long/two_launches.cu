// Softmax of few, very long rows in two launches: PARTS blocks a row find a maximum and a sum each, then as many blocks read the row again, much
// of it from L2, and write. The second launch walks backwards, because what was read last is still cached, and with OVERLAP it starts early and has
// its part of the row in registers before it waits for the first.
//
// @tune BLOCK = 128 in 128 256 512
// @tune VECTORS = 4 in 4 8 16                                # float4 a thread
// @tune OVERLAP = true in false true
// @require x.contiguous and x.ndim >= 1
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * VECTORS * BLOCK) == 0
// @const PARTS = COLUMNS // (4 * VECTORS * BLOCK)
// @const ROWS = x.numel // COLUMNS
// @require ROWS <= 65535
// @scratch parts float32 [ROWS, PARTS, 2]                    # maximum, and the sum of exp(value - maximum)
// @launch find<<<(PARTS, ROWS), BLOCK>>>(x, parts)
// @launch write<<<(PARTS, ROWS), BLOCK, 0, pdl=OVERLAP>>>(x, parts, out)

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

__global__ void __launch_bounds__(BLOCK) find(const float4* __restrict__ x, float2* __restrict__ parts)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* first = x + ((size_t)blockIdx.y * PARTS + blockIdx.x) * (VECTORS * BLOCK) + threadIdx.x;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldg(first + i * BLOCK);
    allow_next();

    float top = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) top = fmaxf(top, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    top = warp_maximum(top);
    const float shift = shift_of(top);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum += (expf(v[i].x - shift) + expf(v[i].y - shift)) + (expf(v[i].z - shift) + expf(v[i].w - shift));
    sum = warp_sum(sum);
    if (lane == 0) {
        maxima[warp] = top;
        sums[warp] = sum;
    }
    __syncthreads();
    if (warp == 0) {
        const float others = lane < WARPS ? maxima[lane] : -INFINITY, highest = warp_maximum(others);
        sum = warp_sum(lane < WARPS ? sums[lane] * expf(others - shift_of(highest)) : 0.0f);
        if (lane == 0) parts[blockIdx.y * PARTS + blockIdx.x] = make_float2(highest, sum);
    }
}

__global__ void __launch_bounds__(BLOCK) write(const float4* __restrict__ x, const float2* parts, float4* __restrict__ out)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int part = PARTS - 1 - blockIdx.x, row = ROWS - 1 - blockIdx.y;
    const size_t first = ((size_t)row * PARTS + part) * (VECTORS * BLOCK) + threadIdx.x;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + first + i * BLOCK);
    wait_for_previous();

    // Every block merges the parts of its row anew: a few KB from L2.
    float top = -INFINITY, sum = 0.0f;
    for (int i = threadIdx.x; i < PARTS; i += BLOCK) {
        const float2 other = __ldcg(parts + row * PARTS + i);
        const float highest = fmaxf(top, other.x), shift = shift_of(highest);
        sum = sum * expf(top - shift) + other.y * expf(other.x - shift);
        top = highest;
    }
    const float highest = warp_maximum(top);
    sum = warp_sum(sum * expf(top - shift_of(highest)));
    if (lane == 0) {
        maxima[warp] = highest;
        sums[warp] = sum;
    }
    __syncthreads();
    const float others = lane < WARPS ? maxima[lane] : -INFINITY, shift = shift_of(warp_maximum(others));
    const float factor = 1.0f / warp_sum(lane < WARPS ? sums[lane] * expf(others - shift) : 0.0f);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        out[first + i * BLOCK] = make_float4(
            expf(v[i].x - shift) * factor, expf(v[i].y - shift) * factor, expf(v[i].z - shift) * factor, expf(v[i].w - shift) * factor);
}
