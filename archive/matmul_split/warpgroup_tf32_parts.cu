// A strict fp32 product on Hopper's warpgroup tensor instructions, out^T = b^T a^T: every number is two TF32 parts, and three of the four products of
// parts are summed, small ones first. TF32 wants the operand in shared memory to run along k, as a does: a first pass writes its parts. The other
// operand may come from registers in any order: b is split on the way there, for the next slab while this one is multiplied.
//
// @tune STAGES = 4 in 3 4                                    # slabs of 32 along K in shared memory
// @const M = a.shape[0]
// @const K = a.shape[1]
// @const N = b.shape[1]
// @require a.contiguous and b.contiguous and M % 128 == 0 and N % 128 == 0 and K % 64 == 0 and K >= 32 * STAGES
// @const SHARED = STAGES * 3 * 128 * 128
// @require SHARED <= device.smem_per_block and device.l2_bytes < 2**26   # wgmma is Hopper's alone; its successor, with twice the L2, lacks it
// @scratch a_high float32 [M, K]
// @scratch a_low float32 [M, K]
// @launch split_all<<<M * K // 1024, 256>>>(a, a_high, a_low)
// @launch multiply<<<(M // 128) * (N // 128), 256, SHARED>>>(a_high, a_low, b, out)

constexpr int TILE = 128, SLAB = 32, THREADS = 256, STEPS = SLAB / 8;
constexpr int STAGE = 3 * TILE * SLAB;  // floats: a's high parts, low parts, b

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

// d (64 x 128, 128 threads) = or += a (64 x 8) * b (8 x 128). Lane 4 g + t of warp w holds a: rows 16 w + g and + 8 of column t, then of t + 4, and
// d[4 j ...]: columns 8 j + 2 t and the next of row 16 w + g, then of the row 8 below.
__device__ __forceinline__ void multiply_add(float (&d)[64], const unsigned (&a)[4], unsigned long long b, int add)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k8.f32.tf32.tf32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, "
        "%29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, "
        "%56, %57, %58, %59, %60, %61, %62, %63}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
          "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
          "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
          "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
          "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
          "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// high has TF32's 11 bits, rounded to nearest; x - high is exact, and the tensor core leaves out at most its last bit.
__device__ __forceinline__ void split(float x, unsigned& high, unsigned& low)
{
    high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
    low = __float_as_uint(x - __uint_as_float(high));
}

__global__ void __launch_bounds__(256) split_all(const float4* __restrict__ a, uint4* __restrict__ a_high, uint4* __restrict__ a_low)
{
    const unsigned i = blockIdx.x * 256 + threadIdx.x;
    const float4 x = a[i];
    uint4 high, low;
    split(x.x, high.x, low.x);
    split(x.y, high.y, low.y);
    split(x.z, high.z, low.z);
    split(x.w, high.w, low.w);
    a_high[i] = high;
    a_low[i] = low;
}

// Copies slabs: parts of a as `described` says, b with chunks swapped by k % 4 * 2, so that half a warp reads float2 from all banks.
struct Copier {
    const float *high, *low, *b;
    unsigned to_a, to_b;

    __device__ __forceinline__ void fetch(float* stage)
    {
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async(stage + to_a + i * 32 * SLAB, high + i * 32 * K);
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async(stage + to_a + TILE * SLAB + i * 32 * SLAB, low + i * 32 * K);
#pragma unroll
        for (int i = 0; i < 4; ++i) copy_async(stage + to_b + i * 8 * TILE, b + i * 8 * N);
        high += SLAB;
        low += SLAB;
        b += SLAB * N;
    }
};

struct Parts {
    unsigned high[STEPS][4], low[STEPS][4];

    // Columns n and n + 1 of b, which are rows g and g + 8 of a warp's 16; at: where k = t of them stands.
    __device__ __forceinline__ void load(const float* at)
    {
#pragma unroll
        for (int step = 0; step < STEPS; ++step)
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float2 v = *(const float2*)(at + (8 * step + 4 * i) * TILE);
                split(v.x, high[step][2 * i], low[step][2 * i]);
                split(v.y, high[step][2 * i + 1], low[step][2 * i + 1]);
            }
    }
};

// Products of a slab are started, the parts of the next are loaded meanwhile, and what is there in the end is added to total.
__device__ __forceinline__ void multiply_slab(float (&total)[64], const Parts& now, Parts& next, const float* stage, const float* next_at)
{
    float sum[64];
    const unsigned long long high = described(stage), low = described(stage + TILE * SLAB);
    begin_products();
#pragma unroll
    for (int step = 0; step < STEPS; ++step) {
        multiply_add(sum, now.low[step], high + 2 * step, step > 0);
        multiply_add(sum, now.high[step], low + 2 * step, 1);
        multiply_add(sum, now.high[step], high + 2 * step, 1);
    }
    end_products();
    next.load(next_at);
    wait_for_products();
#pragma unroll
    for (int i = 0; i < 64; ++i) from_here(sum[i]);
    // Tensor cores cut their sums off instead of rounding: a fresh sum for each slab keeps that below the rounding of these adds.
#pragma unroll
    for (int i = 0; i < 64; ++i) total[i] += sum[i];
}

__global__ void __launch_bounds__(THREADS, 1)
multiply(const float* __restrict__ a_high, const float* __restrict__ a_low, const float* __restrict__ b, float* __restrict__ out)
{
    extern __shared__ __align__(1024) float4 memory[];
    float* ring = (float*)memory;
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, chunk = threadIdx.x % 8, row = threadIdx.x / 8;
    // Blocks that run together walk down a column of tiles: their slabs of b are the same.
    const unsigned first_row = blockIdx.x % (M / TILE) * TILE, first_column = blockIdx.x / (M / TILE) * TILE;
    const size_t first = (size_t)(first_row + row) * K + chunk * 4;
    Copier copier = {a_high + first, a_low + first, b + (size_t)warp * N + first_column + threadIdx.x % 32 * 4,
                     row * SLAB + (chunk ^ row % 8) * 4, 2 * TILE * SLAB + warp * TILE + (threadIdx.x % 32 ^ warp % 4 * 2) * 4};
    const unsigned at = 2 * TILE * SLAB + t * TILE + (16 * warp + 2 * g ^ 8 * t);

#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        copier.fetch(ring + s * STAGE);
        end_of_group();
    }
    wait_for_groups<STAGES - 2>();
    __syncthreads();
    Parts even, odd;
    even.load(ring + at);

    float total[64] = {};
    int now = 0;
    const auto advance = [&](int slab, const Parts& parts, Parts& next) {
        const int after = now + 1 == STAGES ? 0 : now + 1;
        wait_for_groups<STAGES - 3>();
        show_to_tensor_cores();
        __syncthreads();  // the next slab is there for all, and all are done with the one before this, whose place is filled again
        if (slab + STAGES - 1 < K / SLAB) copier.fetch(ring + (now == 0 ? STAGES - 1 : now - 1) * STAGE);
        end_of_group();
        multiply_slab(total, parts, next, ring + now * STAGE, ring + after * STAGE + at);  // after the last slab: loaded, not used
        now = after;
    };
#pragma unroll 1
    for (int slab = 0; slab < K / SLAB; slab += 2) {
        advance(slab, even, odd);
        advance(slab + 1, odd, even);
    }

    const size_t column = first_column + 16 * warp + 2 * g;
#pragma unroll
    for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i)
            *(float2*)(out + (first_row + 8 * j + 2 * t + i) * (size_t)N + column) = make_float2(total[4 * j + i], total[4 * j + 2 + i]);
}
