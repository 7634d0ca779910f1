// Mean square over the middle dimension, split over a cluster: each of its SPLIT blocks reads a contiguous stretch of whole rows (one page of memory
// after another, where columns would touch a short piece of every row), and the blocks' sums are added through distributed shared memory in a
// fixed order, each block finishing its share of the columns.
//
// @tune SPLIT = 8 in 4 8                                     # blocks of a cluster
// @tune GROUPS = 1 in 1 2 4                                  # rows a block reads side by side
// @tune RESIDENT = 4 in 1 2 4                                # blocks a multiprocessor has the registers for
// @require x.ndim == 3 and x.contiguous
// @const ROWS = x.shape[1]
// @const ACROSS = x.shape[2] // 4                            # float4 of a row
// @require x.shape[2] % 128 == 0 and ACROSS * GROUPS <= 1024 and ROWS <= 64 * SPLIT * GROUPS and
// @+       RESIDENT * ACROSS * GROUPS <= 2048 and ACROSS % SPLIT == 0 and ROWS % (SPLIT * GROUPS) == 0
// @launch mean_square<<<SPLIT * x.shape[0], ACROSS * GROUPS, cluster=(SPLIT, 1, 1)>>>(x, out)

#include <cooperative_groups.h>

constexpr int PER_THREAD = ROWS / (SPLIT * GROUPS);
constexpr int SHARE = ACROSS / SPLIT;  // float4 columns a block finishes

__device__ __forceinline__ float4 added(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__global__ void __launch_bounds__(ACROSS * GROUPS, RESIDENT) mean_square(const float4* __restrict__ x, float4* __restrict__ out)
{
    __shared__ float4 part[GROUPS][ACROSS];
    const auto cluster = cooperative_groups::this_cluster();
    const float4* first = x + (size_t)blockIdx.x * (ROWS / SPLIT) * ACROSS + threadIdx.x;  // GROUPS rows are one stretch too

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    // Bounds of RESIDENT blocks leave the compiler the registers to ask for many vectors before it uses the first.
#pragma unroll
    for (int i = 0; i < PER_THREAD; ++i) {
        const float4 v = __ldcs(first + i * (GROUPS * ACROSS));
        sum = added(sum, make_float4(v.x * v.x, v.y * v.y, v.z * v.z, v.w * v.w));
    }
    part[threadIdx.x / ACROSS][threadIdx.x % ACROSS] = sum;
    cluster.sync();

    if (threadIdx.x < SHARE) {
        const int rank = cluster.block_rank(), column = rank * SHARE + threadIdx.x;
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int r = 0; r < SPLIT; ++r) {
#pragma unroll
            for (int g = 0; g < GROUPS; ++g) total = added(total, *cluster.map_shared_rank(&part[g][column], r));
        }
        out[(size_t)(blockIdx.x / SPLIT) * ACROSS + column] = make_float4(total.x / ROWS, total.y / ROWS, total.z / ROWS, total.w / ROWS);
    }
    cluster.sync();  // no block may end while another reads its shared memory
}
