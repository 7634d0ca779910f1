// Linear + bias + ReLU as fp32 tiles of 64 x 64, the sum over K split among the blocks of a cluster so that all multiprocessors are busy; the parts
// are added through distributed shared memory in a fixed order, with bias and ReLU, so nothing in between goes to memory.
//
// @tune SPLIT = 8 in 1 2 4 8                                 # blocks of a cluster, parts of K
// @tune SLAB = 16 in 8 16 32                                 # columns of both operands in shared memory at a time
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @const N = linear_weight.shape[0]
// @const K = linear_weight.shape[1]
// @require x.shape[0] % 64 == 0 and N % 64 == 0 and K % (SPLIT * SLAB) == 0
// @launch product<<<(N // 64, x.shape[0] // 64, SPLIT), 128, cluster=(1, 1, SPLIT)>>>(x, linear_weight, linear_bias, out)

#include <cooperative_groups.h>

constexpr int TILE = 64, THREADS = 128;
constexpr int DEPTH = K / SPLIT;                         // of one block
constexpr int VECTORS = TILE * SLAB / (4 * THREADS);     // float4 of one operand a thread loads for a slab

// Where element (k, m) of a slab stands. Columns are swapped in groups of eight for every fourth k: the stores of a warp, which walk along both,
// then go to 32 banks when SLAB is 16 (two at a time otherwise), and the loads, which walk along m, always do.
__device__ __forceinline__ int place(int k, int m) { return k * TILE + (m ^ k / 4 % 4 * 8); }

struct Fetched {
    float4 v[VECTORS];
};

__device__ __forceinline__ Fetched fetch(const float* from)
{
    Fetched f;
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = i * THREADS + threadIdx.x;
        f.v[i] = __ldg((const float4*)(from + (size_t)(at / (SLAB / 4)) * K + at % (SLAB / 4) * 4));
    }
    return f;
}

__device__ __forceinline__ void store_transposed(float* slab, const Fetched& f)
{
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) {
        const int at = i * THREADS + threadIdx.x, m = at / (SLAB / 4), k = at % (SLAB / 4) * 4;
        slab[place(k, m)] = f.v[i].x;
        slab[place(k + 1, m)] = f.v[i].y;
        slab[place(k + 2, m)] = f.v[i].z;
        slab[place(k + 3, m)] = f.v[i].w;
    }
}

__device__ __forceinline__ void add_outer(float4& sum, float a, float4 b)
{
    sum.x = fmaf(a, b.x, sum.x);
    sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z);
    sum.w = fmaf(a, b.w, sum.w);
}

// Eight rows from `row`, four columns from `column`, for all k of a slab.
__device__ __forceinline__ void multiply(float4 (&sum)[8], const float* a, const float* b, int row, int column)
{
#pragma unroll
    for (int k = 0; k < SLAB; ++k) {
        const float4 low = *(const float4*)(a + place(k, row)), high = *(const float4*)(a + place(k, row + 4));
        const float4 w = *(const float4*)(b + place(k, column));
        add_outer(sum[0], low.x, w);
        add_outer(sum[1], low.y, w);
        add_outer(sum[2], low.z, w);
        add_outer(sum[3], low.w, w);
        add_outer(sum[4], high.x, w);
        add_outer(sum[5], high.y, w);
        add_outer(sum[6], high.z, w);
        add_outer(sum[7], high.w, w);
    }
}

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

__global__ void __launch_bounds__(THREADS)
product(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ out)
{
    __shared__ __align__(16) float a[2][SLAB * TILE], b[2][SLAB * TILE];
    __shared__ float4 part[TILE][TILE / 4];
    const int row = threadIdx.x / 16 * 8, column = threadIdx.x % 16 * 4;
    const float* left = x + (size_t)blockIdx.y * TILE * K + blockIdx.z * DEPTH;
    const float* right = weight + (size_t)blockIdx.x * TILE * K + blockIdx.z * DEPTH;

    float4 sum[8];
#pragma unroll
    for (int r = 0; r < 8; ++r) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    Fetched next_left = fetch(left), next_right = fetch(right);
    store_transposed(a[0], next_left);
    store_transposed(b[0], next_right);
    __syncthreads();
    for (int start = 0, now = 0; start < DEPTH; start += SLAB, now ^= 1) {
        const bool more = start + SLAB < DEPTH;
        if (more) {
            next_left = fetch(left + start + SLAB);
            next_right = fetch(right + start + SLAB);
        }
        multiply(sum, a[now], b[now], row, column);
        if (more) {  // the other buffer was last read before the barrier that ended the previous round
            store_transposed(a[now ^ 1], next_left);
            store_transposed(b[now ^ 1], next_right);
        }
        __syncthreads();
    }

#pragma unroll
    for (int r = 0; r < 8; ++r) part[row + r][column / 4] = sum[r];
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    constexpr int ROWS = TILE / SPLIT;  // that this block finishes
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * (TILE / 4); i += THREADS) {
        const int r = blockIdx.z * ROWS + i / (TILE / 4), c = i % (TILE / 4);
        const float4 add = __ldg((const float4*)bias + blockIdx.x * (TILE / 4) + c);
        float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) {
            const float4 p = *cluster.map_shared_rank(&part[r][c], rank);
            total = make_float4(total.x + p.x, total.y + p.y, total.z + p.z, total.w + p.w);
        }
        ((float4*)out)[((size_t)blockIdx.y * TILE + r) * (N / 4) + blockIdx.x * (TILE / 4) + c] =
            make_float4(clipped(total.x + add.x), clipped(total.y + add.y), clipped(total.z + add.z), clipped(total.w + add.w));
    }
    cluster.sync();  // no block may end while another reads its shared memory
}
