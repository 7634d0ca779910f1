// Layer normalisation and exact GELU with THREADS threads a row and the row in registers: mean and squared deviations are found per warp, then
// merged by Chan's formula behind one barrier, which is as accurate as two passes. With one warp a row there is no barrier at all.
//
// @tune THREADS = 128 in 32 64 128 256                       # a row
// @tune ROWS = 1 in 1 2 4                                    # a block
// @require x.contiguous and norm_weight.contiguous and norm_bias.contiguous
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * THREADS) == 0 and COLUMNS <= 64 * THREADS and norm_weight.numel == COLUMNS
// @require (x.numel // COLUMNS) % ROWS == 0 and THREADS * ROWS >= 64
// @launch layernorm_gelu<<<x.numel // (COLUMNS * ROWS), (THREADS, ROWS)>>>(x, norm_weight, norm_bias, out, 1e-5)

constexpr int VECTORS = COLUMNS / (4 * THREADS);  // float4 a thread
constexpr int WARPS = THREADS / 32;               // a row
constexpr int PER_WARP = COLUMNS / WARPS;         // elements

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

__device__ __forceinline__ float gelu(float v) { return 0.5f * v * (1.0f + erff(v * 0.707106781186547524f)); }

__device__ __forceinline__ float squared(float a) { return a * a; }

__global__ void __launch_bounds__(THREADS * ROWS)
layernorm_gelu(const float4* __restrict__ x, const float4* __restrict__ weight, const float4* __restrict__ bias, float4* __restrict__ out, float eps)
{
    __shared__ float means[ROWS][WARPS], deviations[ROWS][WARPS];
    const int warp = threadIdx.x / 32;
    const size_t first = ((size_t)blockIdx.x * ROWS + threadIdx.y) * (COLUMNS / 4) + threadIdx.x;

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + first + i * THREADS);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    float mean = warp_sum(sum) * (1.0f / PER_WARP);
    float deviation = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i)
        deviation += (squared(v[i].x - mean) + squared(v[i].y - mean)) + (squared(v[i].z - mean) + squared(v[i].w - mean));
    deviation = warp_sum(deviation);

    if (WARPS > 1) {
        if (threadIdx.x % 32 == 0) {
            means[threadIdx.y][warp] = mean;
            deviations[threadIdx.y][warp] = deviation;
        }
        __syncthreads();
        mean = deviation = 0.0f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) mean += means[threadIdx.y][i];
        mean *= 1.0f / WARPS;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) deviation += deviations[threadIdx.y][i] + PER_WARP * squared(means[threadIdx.y][i] - mean);
    }
    const float factor = 1.0f / sqrtf(deviation * (1.0f / COLUMNS) + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float4 w = __ldg(weight + threadIdx.x + i * THREADS), b = __ldg(bias + threadIdx.x + i * THREADS);
        out[first + i * THREADS] = make_float4(
            gelu((v[i].x - mean) * factor * w.x + b.x), gelu((v[i].y - mean) * factor * w.y + b.y),
            gelu((v[i].z - mean) * factor * w.z + b.z), gelu((v[i].w - mean) * factor * w.w + b.w));
    }
}
