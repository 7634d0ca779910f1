// Root-mean-square normalisation with one block a row: the row stays in registers between its only read and its only write, one barrier brings
// the sum of squares together. The weight is asked for before the barrier, so that its latency hides behind it.
//
// @tune BLOCK = 256 in 128 256 512 1024
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and weight.contiguous
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * BLOCK) == 0 and COLUMNS <= 32 * BLOCK and weight.numel == COLUMNS
// @launch rmsnorm<<<x.numel // COLUMNS, BLOCK>>>(x, weight, out, 1e-6)

constexpr int VECTORS = COLUMNS / (4 * BLOCK);  // float4 a thread
constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

__global__ void __launch_bounds__(BLOCK)
rmsnorm(const float4* __restrict__ x, const float4* __restrict__ weight, float4* __restrict__ out, float eps)
{
    __shared__ float squares[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = (size_t)blockIdx.x * (COLUMNS / 4) + threadIdx.x;

    float4 v[VECTORS], w[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + first + i * BLOCK);
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) w[i] = __ldg(weight + threadIdx.x + i * BLOCK);

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) sum += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    sum = warp_sum(sum);
    if (lane == 0) squares[warp] = sum;
    __syncthreads();
    const float total = warp_sum(lane < WARPS ? squares[lane] : 0.0f);
    const float factor = 1.0f / sqrtf(total * (1.0f / COLUMNS) + eps);

#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float4 scaled = make_float4(
            v[i].x * factor * w[i].x, v[i].y * factor * w[i].y, v[i].z * factor * w[i].z, v[i].w * factor * w[i].w);
        if (STREAM) __stcs(out + first + i * BLOCK, scaled);
        else out[first + i * BLOCK] = scaled;
    }
}
