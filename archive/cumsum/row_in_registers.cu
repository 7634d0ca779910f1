// Cumulative sum along rows with one block a row and the row in registers between its only read and its only write. A warp owns a stretch of the
// row and scans each 128 neighbours by shuffles; one barrier brings the warps' totals together. What stands before a stretch or a piece of it is
// added up in double, a few additions a thread: an error there would be in all sums behind it, also where they come near zero.
//
// @tune BLOCK = 512 in 256 512 1024
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and x.ndim >= 1
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * BLOCK) == 0 and COLUMNS <= 64 * BLOCK
// @launch cumsum<<<x.numel // COLUMNS, BLOCK>>>(x, out)

constexpr int VECTORS = COLUMNS / (4 * BLOCK);  // float4 a thread
constexpr int WARPS = BLOCK / 32;

// Sums of this lane's value and all before it.
__device__ __forceinline__ float warp_scan(float v, int lane)
{
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, v, apart);
        if (lane >= apart) v += before;
    }
    return v;
}

__global__ void __launch_bounds__(BLOCK) cumsum(const float4* __restrict__ x, float4* __restrict__ out)
{
    __shared__ double totals[WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = (size_t)blockIdx.x * (COLUMNS / 4) + warp * (VECTORS * 32) + lane;

    float4 v[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) v[i] = __ldcs(x + first + i * 32);

    float before[VECTORS];  // the sum of what stands before this lane's float4 in the warp's stretch
    double total = 0.0;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        v[i].y += v[i].x;
        v[i].w += v[i].z;
        v[i].z += v[i].y;
        v[i].w += v[i].y;
        const float scanned = warp_scan(v[i].w, lane);
        const float left = __shfl_up_sync(0xffffffffu, scanned, 1);  // not scanned - own: inf - inf would be NaN
        before[i] = (float)(lane > 0 ? total + left : total);
        total += __shfl_sync(0xffffffffu, scanned, 31);
    }
    if (lane == 0) totals[warp] = total;
    __syncthreads();

    double offset = 0.0;
    for (int i = 0; i < warp; ++i) offset += totals[i];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const float add = (float)(offset + before[i]);
        const float4 sums = make_float4(v[i].x + add, v[i].y + add, v[i].z + add, v[i].w + add);
        if (STREAM) __stcs(out + first + i * 32, sums);
        else out[first + i * 32] = sums;
    }
}
