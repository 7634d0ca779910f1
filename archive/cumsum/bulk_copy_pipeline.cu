// Cumulative sum along rows as a pipeline: a block stays for many rows, and Hopper's copy engine keeps the next STAGES rows on their way into shared
// memory while one is scanned. A warp owns a stretch of the row and scans each 128 neighbours by shuffles; one barrier a row brings the warps' totals
// together. What stands before a stretch or a piece of it is added up in double: an error there would be in all sums behind it.
//
// @tune BLOCK = 512 in 256 512 1024
// @tune STAGES = 2 in 2 3                                    # rows in shared memory
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and x.ndim >= 1
// @const COLUMNS = x.shape[-1]
// @const ROWS = x.numel // COLUMNS
// @require COLUMNS % (4 * BLOCK) == 0 and COLUMNS <= 64 * BLOCK
// @require 4 * COLUMNS * STAGES + 2048 <= device.smem_per_block
// @const BLOCKS = min(ROWS, device.sm_count)                 # one a multiprocessor
// @launch cumsum<<<BLOCKS, BLOCK, 4 * COLUMNS * STAGES>>>(x, out)

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

__device__ __forceinline__ unsigned shared_address(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void prepare(unsigned long long* barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// One thread asks the copy engine for `bytes`; the barrier's phase ends when they are there.
__device__ __forceinline__ void copy(void* to, const void* from, unsigned bytes, unsigned long long* barrier)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes), "r"(shared_address(barrier)) : "memory");
}

__device__ __forceinline__ void wait(unsigned long long* barrier, unsigned parity)
{
    unsigned done;
    do {
        asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_address(barrier)), "r"(parity) : "memory");
    } while (!done);
}

__global__ void __launch_bounds__(BLOCK, 1) cumsum(const float4* __restrict__ x, float4* __restrict__ out)
{
    extern __shared__ __align__(128) float4 rows[];  // [STAGES][COLUMNS / 4]
    __shared__ unsigned long long arrived[STAGES];
    __shared__ double totals[2][WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, place = warp * (VECTORS * 32) + lane;

    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) prepare(arrived + s);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // seen by the copy engine
#pragma unroll
        for (int s = 0; s < STAGES; ++s)
            if (blockIdx.x + s * BLOCKS < ROWS)
                copy(rows + s * (COLUMNS / 4), x + (size_t)(blockIdx.x + s * BLOCKS) * (COLUMNS / 4), 4 * COLUMNS, arrived + s);
    }
    __syncthreads();

    unsigned stage = 0, parity = 0, turn = 0;
    for (int row = blockIdx.x; row < ROWS; row += BLOCKS) {
        wait(arrived + stage, parity);
        float4 v[VECTORS];
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) v[i] = rows[stage * (COLUMNS / 4) + place + i * 32];
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
        if (lane == 0) totals[turn][warp] = total;
        __syncthreads();  // the totals stand, and nobody needs this stage any more
        if (threadIdx.x == 0 && row + STAGES * BLOCKS < ROWS)
            copy(rows + stage * (COLUMNS / 4), x + (size_t)(row + STAGES * BLOCKS) * (COLUMNS / 4), 4 * COLUMNS, arrived + stage);

        double offset = 0.0;
        for (int i = 0; i < warp; ++i) offset += totals[turn][i];
        float4* to = out + (size_t)row * (COLUMNS / 4) + place;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const float add = (float)(offset + before[i]);
            const float4 sums = make_float4(v[i].x + add, v[i].y + add, v[i].z + add, v[i].w + add);
            if (STREAM) __stcs(to + i * 32, sums);
            else to[i * 32] = sums;
        }
        turn ^= 1;  // the other half of `totals`: a slow warp may still read this one
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}
