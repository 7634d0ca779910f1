// Linear + bias + ReLU on Hopper's warpgroup tensor instructions in fp32 precision: each number is two TF32 parts, three of the four products of
// parts are summed, small ones first. The weight is split when it is bound, x on its way to registers, a slab ahead of the products. A cluster
// shares a tile along K; the parts of the sum meet in distributed shared memory, in a fixed order, where bias and ReLU are applied.
//
// @tune SPLIT = 2 in 2 4 8                                   # blocks of a cluster, parts of K
// @tune STAGES = 4 in 3 4 6                                  # slabs of 32 along K in shared memory
// @require x.ndim == 2 and x.contiguous and linear_weight.contiguous
// @const M = x.shape[0]
// @const N = linear_weight.shape[0]
// @const K = linear_weight.shape[1]
// @const DEPTH = K // SPLIT                                  # of one block
// @require M % 128 == 0 and N % 64 == 0 and K % (64 * SPLIT) == 0
// @const SHARED = STAGES * 128 * (128 + 2 * 64)
// @require SHARED <= device.smem_per_block and device.l2_bytes < 2**26   # wgmma is Hopper's alone; its successor, with twice the L2, lacks it
// @persist weight_high float32 [N, K]
// @persist weight_low float32 [N, K]
// @prepare launch split_weight<<<N * K // 256, 256>>>(linear_weight, weight_high, weight_low)
// @launch product<<<(N // 64, M // 128, SPLIT), 256, SHARED, cluster=(1, 1, SPLIT)>>>(x, weight_high, weight_low, linear_bias, out)

#include <cooperative_groups.h>

constexpr int TILE_M = 128, TILE_N = 64, SLAB = 32, THREADS = 256, STEPS = SLAB / 8, SLABS = DEPTH / SLAB;
constexpr int STAGE = SLAB * (TILE_M + 2 * TILE_N);  // floats: x, the weight's high parts, low parts

// 16 bytes to shared memory, asynchronously.
__device__ __forceinline__ void copy_async(float* to, const float* from)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups of copies are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

// What this thread has put in shared memory can be read by the tensor cores (after a barrier: by those of all warps).
__device__ __forceinline__ void show_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Around a group of products: registers are handed over, the group is closed, and waited for.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// Keeps uses of x behind the wait before it.
__device__ __forceinline__ void from_here(float& x) { asm volatile("" : "+f"(x)::"memory"); }

// How the tensor cores find a matrix whose rows are 128 bytes of k: groups of eight rows are 1024 bytes apart, in a row chunks of 16 bytes are
// swapped by row % 8 (the 128-byte swizzle, 1 in the topmost bits). The next eight k are 32 bytes on: 2 is added.
__device__ __forceinline__ unsigned long long described(const float* matrix)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(matrix);
    return (unsigned long long)((address & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// d (64 x 64, 128 threads) = or += a (64 x 8) * b (8 x 64). Lane 4 g + t of warp w holds a: rows 16 w + g and + 8 of column t, then of t + 4, and
// d[4 j ...]: columns 8 j + 2 t and the next of row 16 w + g, then of the row 8 below.
__device__ __forceinline__ void multiply_add(float (&d)[32], const unsigned (&a)[4], unsigned long long b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
        "%29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
          "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
          "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// high has TF32's 11 bits, rounded to nearest; x - high is exact, and the tensor core leaves out at most its last bit.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low)
{
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

// The sum may run through k in any order as long as both operands agree: in each group of 16 lane 4 g + t takes k = 4 t ... 4 t + 3 of x, as float4,
// so the weight's columns t and t + 4 of two steps of eight are those.
__global__ void __launch_bounds__(256) split_weight(const float* weight, unsigned* weight_high, unsigned* weight_low)
{
    const size_t i = (size_t)blockIdx.x * 256 + threadIdx.x;
    const unsigned step = i % 16 / 8, column = i % 8;
    split(weight[i / 16 * 16 + column % 4 * 4 + 2 * step + column / 4], weight_high[i], weight_low[i]);
}

// Copies slabs: parts of the weight as `described` says, x with chunks swapped by m % 2 * 4, so that float4 are read from all banks.
struct Copier {
    const float *x, *high, *low;
    unsigned to_x, to_weight;

    __device__ __forceinline__ void fetch(float* stage)
    {
#pragma unroll
        for (int i = 0; i < TILE_M; i += 32) copy_async(stage + to_x + i * SLAB, x + i * K);
#pragma unroll
        for (int i = 0; i < TILE_N; i += 32) copy_async(stage + to_weight + i * SLAB, high + i * K);
#pragma unroll
        for (int i = 0; i < TILE_N; i += 32) copy_async(stage + to_weight + (TILE_N + i) * SLAB, low + i * K);
        x += SLAB;
        high += SLAB;
        low += SLAB;
    }
};

struct Parts {
    unsigned high[STEPS][4], low[STEPS][4];

    // Of rows g and g + 8 of a warp's 16 of x; stage + at: where the first float4 stands.
    __device__ __forceinline__ void load(const float* stage, unsigned at)
    {
#pragma unroll
        for (int step = 0; step < STEPS; step += 2)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float4 v = *(const float4*)(stage + (at ^ 8 * step) + 8 * h * SLAB);
                split(v.x, high[step][h], low[step][h]);
                split(v.y, high[step][h + 2], low[step][h + 2]);
                split(v.z, high[step + 1][h], low[step + 1][h]);
                split(v.w, high[step + 1][h + 2], low[step + 1][h + 2]);
            }
    }
};

// Products of a slab are started, the parts of the next are loaded meanwhile, and what is there in the end is added to total.
__device__ __forceinline__ void multiply_slab(float (&total)[32], const Parts& now, Parts& next, const float* stage, const float* after, unsigned at)
{
    float sum[32];
    const unsigned long long high = described(stage + TILE_M * SLAB), low = described(stage + (TILE_M + TILE_N) * SLAB);
    begin_products();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        multiply_add(sum, now.low[step], high + 2 * step, step > 0);
        multiply_add(sum, now.high[step], low + 2 * step, 1);
        multiply_add(sum, now.high[step], high + 2 * step, 1);
    }
    end_products();
    next.load(after, at);
    wait_for_products();
#pragma unroll
    for (int i = 0; i < 32; ++i) from_here(sum[i]);
    // Tensor cores cut their sums off instead of rounding: a fresh sum for each slab keeps that below the rounding of these adds.
#pragma unroll
    for (int i = 0; i < 32; ++i) total[i] += sum[i];
}

// A NaN stays one, as in torch.relu.
__device__ __forceinline__ float clipped(float v) { return v < 0.0f ? 0.0f : v; }

// Where four neighbouring sums stand in the tile of a block: pairs of chunks are swapped by row, so that stores of half a warp meet all banks.
__device__ __forceinline__ unsigned place_sum(unsigned m, unsigned chunk) { return m * (TILE_N / 4) + (chunk ^ m % 4 * 2); }

__global__ void __launch_bounds__(THREADS, 1) product(const float* __restrict__ x, const float* __restrict__ weight_high,
                                                      const float* __restrict__ weight_low, const float* __restrict__ bias, float* __restrict__ out)
{
    extern __shared__ __align__(1024) float4 memory[];
    float* ring = (float*)memory;
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    const unsigned first_row = blockIdx.y * TILE_M, first_column = blockIdx.x * TILE_N;
    const size_t first_k = blockIdx.z * DEPTH + chunk * 4, from = (size_t)(first_column + row) * K + first_k;
    Copier copier = {x + (size_t)(first_row + row) * K + first_k, weight_high + from, weight_low + from,
                     row * SLAB + (chunk ^ row % 2 * 4) * 4, (TILE_M + row) * SLAB + (chunk ^ row % 8) * 4};
    const unsigned at = (16 * warp + g) * SLAB + (t ^ g % 2 * 4) * 4;

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < SLABS) copier.fetch(ring + s * STAGE);
        end_of_group();
    }
    wait_for_groups<STAGES - 2>();
    __syncthreads();
    Parts even, odd;
    even.load(ring, at);

    float total[32] = {};
    int now = 0;
    const auto advance = [&](int slab, const Parts& parts, Parts& next) {
        const int after = now + 1 == STAGES ? 0 : now + 1;
        wait_for_groups<STAGES - 3>();
        show_to_tensor_cores();
        __syncthreads();  // the next slab is there for all, and all are done with the one before this, whose place is filled again
        if (slab + STAGES - 1 < SLABS) copier.fetch(ring + (now == 0 ? STAGES - 1 : now - 1) * STAGE);
        end_of_group();
        multiply_slab(total, parts, next, ring + now * STAGE, ring + after * STAGE, at);  // after the last slab: loaded, not used
        now = after;
    };
#pragma unroll 1
    for (int slab = 0; slab < SLABS; slab += 2) {
        advance(slab, even, odd);
        advance(slab + 1, odd, even);
    }

    wait_for_groups<0>();
    __syncthreads();  // the ring becomes the block's tile of sums
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h)
            *(float2*)(ring + 4 * place_sum(16 * warp + 8 * h + g, 2 * j + t / 2) + t % 2 * 2) =
                make_float2(total[4 * j + 2 * h], total[4 * j + 2 * h + 1]);
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
