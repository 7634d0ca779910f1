// Softmax with one block a row: the row stays in registers between its only read and its only write. Every warp works with its own maximum, so
// that a single barrier is needed to bring maxima and sums together.
//
// @tune BLOCK = 256 in 128 256 512 1024
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and x.ndim >= 1
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * BLOCK) == 0 and COLUMNS <= 64 * BLOCK
// @launch softmax<<<x.numel // COLUMNS, BLOCK>>>(x, out)

constexpr int VECTORS = COLUMNS / (4 * BLOCK);  // float4 a thread
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

__global__ void __launch_bounds__(BLOCK) softmax(const float4* __restrict__ x, float4* __restrict__ out)
{
    __shared__ float maxima[WARPS], sums[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = (size_t)blockIdx.x * (COLUMNS / 4) + threadIdx.x;

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + first + i * BLOCK);

    float highest = -INFINITY;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) highest = fmaxf(highest, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    highest = warp_maximum(highest);
    const float shift = highest == -INFINITY ? 0.0f : highest;  // -inf - -inf would be NaN where only this warp's part is masked

    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i] = make_float4(expf(v[i].x - shift), expf(v[i].y - shift), expf(v[i].z - shift), expf(v[i].w - shift));
        sum += (v[i].x + v[i].y) + (v[i].z + v[i].w);
    }
    sum = warp_sum(sum);
    if (lane == 0) {
        maxima[warp] = highest;
        sums[warp] = sum;
    }
    __syncthreads();

    const float others = lane < WARPS ? maxima[lane] : -INFINITY;
    const float top = warp_maximum(others);
    const float total = warp_sum(lane < WARPS ? sums[lane] * expf(others - top) : 0.0f);
    const float factor = expf(highest - top) / total;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float4 scaled = make_float4(v[i].x * factor, v[i].y * factor, v[i].z * factor, v[i].w * factor);
        if (STREAM) __stcs(out + first + i * BLOCK, scaled);
        else out[first + i * BLOCK] = scaled;
    }
}
