// Layer normalisation of few, very long rows in two launches: PARTS blocks a row find mean and squared deviations (two passes in registers, merged by
// Chan's formula), then blocks that own a column of float4 for all rows read weight and bias once and x again, much of it from L2: the rows that
// were read last come first. With OVERLAP the second launch starts early and waits for the first only when it needs it.
//
// @tune BLOCK = 256 in 128 256 512
// @tune VECTORS = 8 in 4 8 16                                # float4 a thread in the first launch
// @tune AHEAD = 4 in 2 4 8                                   # rows on their way in the second
// @tune OVERLAP = true in false true
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and norm_weight.contiguous and norm_bias.contiguous
// @const COLUMNS = norm_weight.numel
// @const ROWS = x.numel // COLUMNS
// @require COLUMNS % (4 * BLOCK * VECTORS) == 0 and ROWS % AHEAD == 0 and ROWS <= 1024
// @const PARTS = COLUMNS // (4 * BLOCK * VECTORS)
// @scratch parts float32 [ROWS, PARTS, 2]                    # mean and squared deviations
// @launch find<<<(PARTS, ROWS), BLOCK>>>(x, parts)
// @launch normalise<<<COLUMNS // (4 * BLOCK), BLOCK, 0, pdl=OVERLAP>>>(x, norm_weight, norm_bias, parts, out, 1e-5)

constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float squared(float a) { return a * a; }

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
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

__global__ void __launch_bounds__(BLOCK) find(const float4* __restrict__ x, float2* __restrict__ parts)
{
    __shared__ float means[WARPS], deviations[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float4* first = x + ((size_t)blockIdx.y * PARTS + blockIdx.x) * (VECTORS * BLOCK) + threadIdx.x;
    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldg(first + i * BLOCK);
    allow_next();

    float mean = 0.0f, deviation = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) mean += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    mean = warp_sum(mean) * (1.0f / (128 * VECTORS));
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        deviation += (squared(v[i].x - mean) + squared(v[i].y - mean)) + (squared(v[i].z - mean) + squared(v[i].w - mean));
    deviation = warp_sum(deviation);
    if (lane == 0) {
        means[warp] = mean;
        deviations[warp] = deviation;
    }
    __syncthreads();
    if (warp == 0) {
        mean = warp_sum(lane < WARPS ? means[lane] : 0.0f) * (1.0f / WARPS);
        deviation = warp_sum(lane < WARPS ? deviations[lane] + squared(means[lane] - mean) * (128 * VECTORS) : 0.0f);
        if (lane == 0) parts[blockIdx.y * PARTS + blockIdx.x] = make_float2(mean, deviation);
    }
}

__global__ void __launch_bounds__(BLOCK)
normalise(const float4* __restrict__ x, const float4* __restrict__ weight, const float4* __restrict__ bias, const float2* parts,
          float4* __restrict__ out, float eps)
{
    __shared__ float2 rows[ROWS];  // mean, and the factor
    const int lane = threadIdx.x % 32;
    const size_t column = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    float4 next[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) next[i] = __ldcs(x + (size_t)(ROWS - 1 - i) * (COLUMNS / 4) + column);
    const float4 w = __ldg(weight + column), b = __ldg(bias + column);
    wait_for_previous();

    for (int r = threadIdx.x / 32; r < ROWS; r += WARPS) {
        float mean = 0.0f, deviation = 0.0f;
        for (int i = lane; i < PARTS; i += 32) mean += __ldcg(parts + r * PARTS + i).x;
        mean = warp_sum(mean) * (1.0f / PARTS);
        for (int i = lane; i < PARTS; i += 32) {
            const float2 part = __ldcg(parts + r * PARTS + i);
            deviation += part.y + squared(part.x - mean) * (4 * VECTORS * BLOCK);
        }
        deviation = warp_sum(deviation);
        if (lane == 0) rows[r] = make_float2(mean, 1.0f / sqrtf(deviation * (1.0f / COLUMNS) + eps));
    }
    __syncthreads();

#pragma unroll 1
    for (int row = ROWS - 1; row >= 0; row -= AHEAD) {
        float4 v[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) v[i] = next[i];
        if (row >= AHEAD) {
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) next[i] = __ldcs(x + (size_t)(row - AHEAD - i) * (COLUMNS / 4) + column);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const float2 r = rows[row - i];
            const float4 y = make_float4((v[i].x - r.x) * r.y * w.x + b.x, (v[i].y - r.x) * r.y * w.y + b.y,
                                         (v[i].z - r.x) * r.y * w.z + b.z, (v[i].w - r.x) * r.y * w.w + b.w);
            float4* to = out + (size_t)(row - i) * (COLUMNS / 4) + column;
            if (STREAM) __stcs(to, y);
            else *to = y;
        }
    }
}
