// Linear + bias + ReLU on tensor cores in fp32 precision: each number is two TF32 parts, three of the four products of parts are summed, small ones
// first. A cluster shares a tile along K, so that all multiprocessors are busy and nearly all copies of a block are under way at once; the parts
// of the sum meet in distributed shared memory, in a fixed order, where bias and ReLU are applied.
//
// @tune TILE_M = 64 in 64 128
// @tune TILE_N = 64 in 64 128
// @tune SPLIT = 2 in 1 2 4 8                                 # blocks of a cluster, parts of K
// @tune STAGES = 3 in 3 4 6 8                                # slabs of 32 along K in shared memory
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @const M = x.shape[0]
// @const N = linear_weight.shape[0]
// @const K = linear_weight.shape[1]
// @const DEPTH = K // SPLIT                                  # of one block
// @require M % TILE_M == 0 and N % TILE_N == 0 and K % (32 * SPLIT) == 0
// @const SHARED = STAGES * 128 * (TILE_M + TILE_N)
// @require SHARED <= device.smem_per_block and 4 * TILE_M * TILE_N <= SHARED
// @launch product<<<(N // TILE_N, M // TILE_M, SPLIT), 256, SHARED, cluster=(1, 1, SPLIT)>>>(x, linear_weight, linear_bias, out)

#include <cooperative_groups.h>

constexpr int SLAB = 32, THREADS = 256, SLABS = DEPTH / SLAB;
constexpr int WARP_M = TILE_M / 4, WARP_N = TILE_N / 2;   // eight warps, four along M
constexpr int ROWS = WARP_M / 16, QUADS = WARP_N / 32;    // 16-row tiles and groups of four 8-column tiles of a warp
constexpr int STAGE = SLAB * (TILE_M + TILE_N);           // floats

// 16 bytes to shared memory, asynchronously.
__device__ __forceinline__ void copy_async(float* to, const float* from)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups of copies are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// d += a (16 x 8) * b (8 x 8). Lane 4 g + t holds a: rows g, g + 8 of column t, then of t + 4; b: rows t, t + 4 of column g; d: columns
// 2 t, 2 t + 1 of row g, then of g + 8.
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// high has TF32's 11 bits, rounded to nearest; x - high is exact, and the tensor core leaves out at most its last bit.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low)
{
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

// Both operands run along k in memory and are read as float4 without bank conflicts: the sum may go through k in any order as long as they agree,
// so in each group of 16 lane 4 g + t takes k = 4 t ... 4 t + 3. Four tiles of columns are woven: column g of tile j is column 4 g + j. Slabs have
// rows of 32 with chunks of 16 bytes swapped by m % 2 * 4 (x) and n / 4 % 2 * 4 (weight).
struct Copier {
    const float *x, *weight;  // where this thread's first copies come from
    unsigned to_x, to_weight;

    __device__ __forceinline__ Copier(const float* tile_x, const float* tile_weight)
    {
        const unsigned row = threadIdx.x / (SLAB / 4), chunk = threadIdx.x % (SLAB / 4);
        x = tile_x + row * K + chunk * 4;
        weight = tile_weight + row * K + chunk * 4;
        to_x = row * SLAB + (chunk ^ row % 2 * 4) * 4;
        to_weight = (TILE_M + row) * SLAB + (chunk ^ row / 4 % 2 * 4) * 4;
    }

    // The next slab.
    __device__ __forceinline__ void fetch(float* stage)
    {
        constexpr int AT_ONCE = THREADS / (SLAB / 4);  // rows that one copy of each thread fills
#pragma unroll
        for (int i = 0; i < TILE_M; i += AT_ONCE) copy_async(stage + to_x + i * SLAB, x + i * K);
#pragma unroll
        for (int i = 0; i < TILE_N; i += AT_ONCE) copy_async(stage + to_weight + i * SLAB, weight + i * K);
        x += SLAB;
        weight += SLAB;
    }
};

// One slab: sum[r][4 q + j] += the warp's rows 16 r ... and columns 32 q + 4 g + j. at_x and at_weight: where this lane's first float4 stand.
__device__ __forceinline__ void multiply_slab(float (&sum)[ROWS][4 * QUADS][4], const float* stage, unsigned at_x, unsigned at_weight)
{
#pragma unroll
    for (int k = 0; k < SLAB; k += 16) {
        float4 a[ROWS][2], b[4 * QUADS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) a[r][h] = *(const float4*)(stage + (at_x ^ k) + (16 * r + 8 * h) * SLAB);
#pragma unroll
        for (int c = 0; c < 4 * QUADS; ++c) b[c] = *(const float4*)(stage + (at_weight ^ k) + (c / 4 * 32 + c % 4) * SLAB);
#pragma unroll
        for (int pair = 0; pair < 2; ++pair) {  // k = 4 t + 2 pair and the next one
            unsigned a_high[ROWS][4], a_low[ROWS][4], b_high[4 * QUADS][2], b_low[4 * QUADS][2];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    split(pair ? a[r][h].z : a[r][h].x, a_high[r][h], a_low[r][h]);
                    split(pair ? a[r][h].w : a[r][h].y, a_high[r][h + 2], a_low[r][h + 2]);
                }
#pragma unroll
            for (int c = 0; c < 4 * QUADS; ++c) {
                split(pair ? b[c].z : b[c].x, b_high[c][0], b_low[c][0]);
                split(pair ? b[c].w : b[c].y, b_high[c][1], b_low[c][1]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < 4 * QUADS; ++c) multiply_add(sum[r][c], a_low[r], b_high[c]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < 4 * QUADS; ++c) multiply_add(sum[r][c], a_high[r], b_low[c]);
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < 4 * QUADS; ++c) multiply_add(sum[r][c], a_high[r], b_high[c]);
        }
    }
}

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

// Where four neighbouring sums stand in the tile of a block: odd rows swap neighbours, so that a warp's stores meet all banks.
__device__ __forceinline__ unsigned place_sum(unsigned m, unsigned chunk) { return m * (TILE_N / 4) + (chunk ^ m % 2); }

__global__ void __launch_bounds__(THREADS, 1)
product(const float* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias, float* __restrict__ out)
{
    extern __shared__ float4 memory[];
    float* ring = (float*)memory;
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned row = warp / 2 * WARP_M, column = warp % 2 * WARP_N;
    const unsigned at_x = (row + g) * SLAB + (t ^ g % 2 * 4) * 4, at_weight = (TILE_M + column + 4 * g) * SLAB + (t ^ g % 2 * 4) * 4;
    const unsigned first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N, first_k = blockIdx.z * DEPTH;
    Copier copier(x + (size_t)first_row * K + first_k, weight + (size_t)first_column * K + first_k);

    float total[ROWS][4 * QUADS][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < SLABS) copier.fetch(ring + s * STAGE);
        end_of_group();
    }
#pragma unroll 1
    for (int slab = 0, now = 0, free = STAGES - 1; slab < SLABS; ++slab) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this slab is there for all, and all are done with the one before, whose place is filled next
        if (slab + STAGES - 1 < SLABS) copier.fetch(ring + free * STAGE);
        end_of_group();
        // Tensor cores cut their sums off instead of rounding: a fresh sum for each slab keeps that below the rounding of these adds.
        float sum[ROWS][4 * QUADS][4] = {};
        multiply_slab(sum, ring + now * STAGE, at_x, at_weight);
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int c = 0; c < 4 * QUADS; ++c)
#pragma unroll
                for (int i = 0; i < 4; ++i) total[r][c][i] += sum[r][c][i];
        now = now + 1 == STAGES ? 0 : now + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }

    // The ring becomes the block's tile of sums. Column 2 t + i of tile j is column 8 t + 4 i + j of a group: a lane has neighbours.
    wait_for_groups<0>();
    __syncthreads();
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    memory[place_sum(row + 16 * r + 8 * h + g, column / 4 + 8 * q + 2 * t + i)] =
                        make_float4(total[r][4 * q][2 * h + i], total[r][4 * q + 1][2 * h + i], total[r][4 * q + 2][2 * h + i],
                                    total[r][4 * q + 3][2 * h + i]);
    const auto cluster = cooperative_groups::this_cluster();
    cluster.sync();
    constexpr int FINISHED = TILE_M / SPLIT;  // rows that this block finishes
#pragma unroll
    for (unsigned i = threadIdx.x; i < FINISHED * (TILE_N / 4); i += THREADS) {
        const unsigned m = blockIdx.z * FINISHED + i / (TILE_N / 4), chunk = i % (TILE_N / 4);
        float4 all = __ldg((const float4*)(bias + first_column) + chunk);
        float4 part[SPLIT];
#pragma unroll
        for (int rank = 0; rank < SPLIT; ++rank) part[rank] = *cluster.map_shared_rank(&memory[place_sum(m, chunk)], rank);
#pragma unroll
        for (int rank = 1; rank < SPLIT; ++rank)
            part[0] = make_float4(part[0].x + part[rank].x, part[0].y + part[rank].y, part[0].z + part[rank].z, part[0].w + part[rank].w);
        all = make_float4(clipped(part[0].x + all.x), clipped(part[0].y + all.y), clipped(part[0].z + all.z), clipped(part[0].w + all.w));
        ((float4*)out)[(size_t)(first_row + m) * (N / 4) + first_column / 4 + chunk] = all;
    }
    cluster.sync();  // no block may end while another reads its shared memory
}
