// Softmax of rows too long for one multiprocessor: a cluster of SPLIT blocks holds a whole row on the chip, in registers (KEPT float4 a thread)
// and in shared memory, so that it is read once and written once. Maximum and sum are found while the row arrives; blocks exchange them through
// distributed shared memory. Clusters of 8 with a block a multiprocessor leave a few of those idle, clusters of 4 may not all run at once.
//
// @tune SPLIT = 8 in 4 8                                     # blocks of a cluster
// @tune BLOCK = 1024 in 256 512 1024
// @tune KEPT = 4 in 4 8 16 20                                # float4 a thread keeps in registers
// @tune STREAM = false in false true                         # stores that leave the cache first
// @require x.contiguous and x.ndim >= 1
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * SPLIT * BLOCK) == 0 and COLUMNS // (4 * SPLIT * BLOCK) >= KEPT and KEPT * BLOCK <= 10240
// @const VECTORS = COLUMNS // (4 * SPLIT * BLOCK)            # float4 a thread
// @const SHARED = VECTORS - KEPT                             # of them in shared memory
// @require 16 * BLOCK * SHARED <= device.smem_per_block - 1024
// @launch softmax<<<x.numel // COLUMNS * SPLIT, BLOCK, 16 * BLOCK * SHARED, cluster=(SPLIT, 1, 1)>>>(x, out)

#include <cooperative_groups.h>

constexpr int WARPS = BLOCK / 32;
constexpr int STEP = 2;                                // float4 a thread looks at together
constexpr int STEPS = (SHARED + STEP - 1) / STEP;      // groups of asynchronous copies

// A maximum, and the sum of exp(value - maximum). All -inf is {-inf, 0}: -inf - -inf would be NaN where only this part is masked.
struct Online {
    float top, sum;
};

__device__ __forceinline__ float shift_of(float top) { return top == -INFINITY ? 0.0f : top; }

__device__ __forceinline__ Online merged(Online a, Online b)
{
    const float top = fmaxf(a.top, b.top), shift = shift_of(top);
    return {top, a.sum * expf(a.top - shift) + b.sum * expf(b.top - shift)};
}

__device__ __forceinline__ Online warp_merged(Online v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2)
        v = merged(v, {__shfl_xor_sync(0xffffffffu, v.top, apart), __shfl_xor_sync(0xffffffffu, v.sum, apart)});
    return v;
}

__device__ __forceinline__ float4 exponentials(float4 v, float shift)
{
    return make_float4(expf(v.x - shift), expf(v.y - shift), expf(v.z - shift), expf(v.w - shift));
}

// Up to STEP float4 are taken in together, so that the old sum is scaled once for all of them.
template <int COUNT> __device__ __forceinline__ void take(Online& online, const float4* v)
{
    float top = online.top;
#pragma unroll
    for (int i = 0; i < COUNT; ++i) top = fmaxf(top, fmaxf(fmaxf(v[i].x, v[i].y), fmaxf(v[i].z, v[i].w)));
    const float shift = shift_of(top);
    float sum = online.sum * expf(online.top - shift);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        const float4 e = exponentials(v[i], shift);
        sum += (e.x + e.y) + (e.z + e.w);
    }
    online = {top, sum};
}

__device__ __forceinline__ void copy_async(float4* to, const float4* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

// Takes in the groups of copies in their order, each as soon as it is there. A thread reads only what it copied itself: no barrier.
template <int GROUP> __device__ __forceinline__ void take_copies(Online& online, const float4* copies)
{
    if constexpr (GROUP < STEPS) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STEPS - 1 - GROUP) : "memory");
        constexpr int COUNT = SHARED - GROUP * STEP < STEP ? SHARED - GROUP * STEP : STEP;
        float4 v[COUNT];
#pragma unroll
        for (int i = 0; i < COUNT; ++i) v[i] = copies[(GROUP * STEP + i) * BLOCK];
        take<COUNT>(online, v);
        take_copies<GROUP + 1>(online, copies);
    }
}

__device__ __forceinline__ void store(float4* to, float4 e, float factor)
{
    const float4 scaled = make_float4(e.x * factor, e.y * factor, e.z * factor, e.w * factor);
    if (STREAM) __stcs(to, scaled);
    else *to = scaled;
}

__global__ void __launch_bounds__(BLOCK, 1) softmax(const float4* __restrict__ x, float4* __restrict__ out)
{
    extern __shared__ float4 copies[];  // [SHARED][BLOCK]
    __shared__ Online warps[WARPS], part;
    const auto cluster = cooperative_groups::this_cluster();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = (size_t)blockIdx.x * (VECTORS * BLOCK) + threadIdx.x;
    float4* mine = copies + threadIdx.x;

    // Everything is asked for before the first use.
#pragma unroll
    for (int i = 0; i < SHARED; ++i) {
        copy_async(mine + i * BLOCK, x + first + i * BLOCK);
        if (i % STEP == STEP - 1 || i == SHARED - 1) asm volatile("cp.async.commit_group;" ::: "memory");
    }
    float4 v[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; ++i) v[i] = __ldcs(x + first + (SHARED + i) * BLOCK);
    __syncthreads();  // nothing to wait for: the compiler may not move loads down to their use across it

    Online online = {-INFINITY, 0.0f};
    take_copies<0>(online, mine);
#pragma unroll
    for (int i = 0; i + STEP <= KEPT; i += STEP) take<STEP>(online, v + i);
    take<KEPT % STEP>(online, v + KEPT - KEPT % STEP);

    online = warp_merged(online);
    if (lane == 0) warps[warp] = online;
    __syncthreads();
    if (warp == 0) {
        online = warp_merged(lane < WARPS ? warps[lane] : Online{-INFINITY, 0.0f});
        if (lane == 0) part = online;
    }
    cluster.sync();
    online = {-INFINITY, 0.0f};
#pragma unroll
    for (int rank = 0; rank < SPLIT; ++rank) online = merged(online, *cluster.map_shared_rank(&part, rank));
    cluster.barrier_arrive();  // this block has read the others' parts

    const float shift = shift_of(online.top), factor = 1.0f / online.sum;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) store(out + first + (SHARED + i) * BLOCK, exponentials(v[i], shift), factor);
#pragma unroll 4
    for (int i = 0; i < SHARED; ++i) store(out + first + i * BLOCK, exponentials(mine[i * BLOCK], shift), factor);
    cluster.barrier_wait();  // no block may end while another reads its part
}
