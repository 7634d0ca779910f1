// A strict fp32 product on tensor cores: every number is split into two TF32 parts, x = high + low, and three of the four products of parts are
// summed, small ones first (low * low is below fp32's own rounding). Slabs of tiles of 128 x 128 go through a ring of asynchronous copies.
//
// @tune STAGES = 4 in 3 4 5 6                                # slabs of 32 along K in shared memory
// @tune ADD_EVERY = 4 in 1 2 4                               # slabs that the tensor cores sum up alone
// @const M = a.shape[0]
// @const K = a.shape[1]
// @const N = b.shape[1]
// @require a.contiguous and b.contiguous and M % 128 == 0 and N % 128 == 0 and K % (32 * ADD_EVERY) == 0 and K >= 32 * STAGES
// @const SHARED = STAGES * 128 * (128 + 128)
// @require SHARED <= device.smem_per_block
// @launch multiply<<<(M // 128) * (N // 128), 256, SHARED>>>(a, b, out)

constexpr int TILE_M = 128, TILE_N = 128, SLAB = 32, THREADS = 256;
constexpr int WARP_N = TILE_N / 4;                 // a warp has 64 rows and a quarter of the columns
constexpr int ROWS = 64 / 16, QUADS = WARP_N / 32; // 16-row tiles and groups of four 8-column tiles of a warp
constexpr int STAGE = SLAB * (TILE_M + TILE_N);    // floats

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

// Both slabs are read as float4 without bank conflicts. The sum may run through k in any order as long as a and b agree: in each group of 16,
// lane 4 g + t takes k = 4 t ... 4 t + 3. Likewise a lane takes four neighbouring columns of b for four tiles of columns. A slab of a has rows of 32
// with chunks of 16 bytes swapped by m % 2 * 4, one of b rows of TILE_N with chunks swapped by k / 4 % 4 * 2.
constexpr int A_ROWS = THREADS / (SLAB / 4), B_ROWS = THREADS / (TILE_N / 4);  // that one copy of each thread fills

struct Copier {
    const float *a, *b;  // where this thread's first copies come from
    unsigned to_a, to_b;

    __device__ __forceinline__ Copier(const float* tile_a, const float* tile_b)
    {
        const unsigned m = threadIdx.x / (SLAB / 4), chunk = threadIdx.x % (SLAB / 4);
        const unsigned k = threadIdx.x / (TILE_N / 4), column = threadIdx.x % (TILE_N / 4);
        a = tile_a + m * K + chunk * 4;
        b = tile_b + k * N + column * 4;
        to_a = m * SLAB + (chunk ^ m % 2 * 4) * 4;
        to_b = TILE_M * SLAB + k * TILE_N + (column ^ k / 4 % 4 * 2) * 4;
    }

    // The next slab.
    __device__ __forceinline__ void fetch(float* stage)
    {
#pragma unroll
        for (int i = 0; i < TILE_M / A_ROWS; ++i) copy_async(stage + to_a + i * A_ROWS * SLAB, a + i * A_ROWS * K);
#pragma unroll
        for (int i = 0; i < SLAB / B_ROWS; ++i) copy_async(stage + (to_b ^ i * B_ROWS / 4 % 4 * 8) + i * B_ROWS * TILE_N, b + i * B_ROWS * N);
        a += SLAB;
        b += SLAB * N;
    }
};

// One slab: sum[r][4 q + j] += the warp's rows 16 r ... and columns 32 q + 4 g + j. at_a and at_b: where this lane's first float4 stand.
__device__ __forceinline__ void multiply_slab(float (&sum)[ROWS][4 * QUADS][4], const float* stage, unsigned at_a, unsigned at_b)
{
#pragma unroll
    for (int k = 0; k < SLAB; k += 16) {
        float4 a[ROWS][2];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) a[r][h] = *(const float4*)(stage + (at_a ^ k) + (16 * r + 8 * h) * SLAB);
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
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    const float4 v = *(const float4*)(stage + at_b + (k + 2 * pair + i) * TILE_N + 32 * q);
                    split(v.x, b_high[4 * q][i], b_low[4 * q][i]);
                    split(v.y, b_high[4 * q + 1][i], b_low[4 * q + 1][i]);
                    split(v.z, b_high[4 * q + 2][i], b_low[4 * q + 2][i]);
                    split(v.w, b_high[4 * q + 3][i], b_low[4 * q + 3][i]);
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

__global__ void __launch_bounds__(THREADS, 1) multiply(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ out)
{
    extern __shared__ float4 memory[];
    float* ring = (float*)memory;
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned row = warp / 4 * 64, column = warp % 4 * WARP_N;
    const unsigned at_a = (row + g) * SLAB + (t ^ g % 2 * 4) * 4, at_b = TILE_M * SLAB + 4 * t * TILE_N + column + (g ^ 2 * t) * 4;
    // Blocks that run together walk down a column of tiles: their slabs of b are the same.
    const unsigned first_row = blockIdx.x % (M / TILE_M) * TILE_M, first_column = blockIdx.x / (M / TILE_M) * TILE_N;
    Copier copier(a + (size_t)first_row * K, b + first_column);

    float total[ROWS][4 * QUADS][4] = {}, sum[ROWS][4 * QUADS][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        copier.fetch(ring + s * STAGE);
        end_of_group();
    }
#pragma unroll 1
    for (int slab = 0, now = 0, free = STAGES - 1; slab < K / SLAB; ++slab) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this slab is there for all, and all are done with the one before, whose place is filled next
        if (slab + STAGES - 1 < K / SLAB) copier.fetch(ring + free * STAGE);
        end_of_group();
        multiply_slab(sum, ring + now * STAGE, at_a, at_b);
        if ((slab + 1) % ADD_EVERY == 0) {
            // Tensor cores cut their sums off instead of rounding; over all of K that would be worse than any fp32 product, over a slab it is not.
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int c = 0; c < 4 * QUADS; ++c)
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        total[r][c][i] += sum[r][c][i];
                        sum[r][c][i] = 0.0f;
                    }
        }
        now = now + 1 == STAGES ? 0 : now + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }

    // Column 2 t + i of tile 4 q + j is column 8 t + 4 i + j of the group: a lane has eight neighbours in a row.
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h)
#pragma unroll
            for (int q = 0; q < QUADS; ++q)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float* to = out + (size_t)(first_row + row + 16 * r + 8 * h + g) * N + first_column + column + 32 * q + 8 * t + 4 * i;
                    *(float4*)to = make_float4(total[r][4 * q][2 * h + i], total[r][4 * q + 1][2 * h + i], total[r][4 * q + 2][2 * h + i],
                                               total[r][4 * q + 3][2 * h + i]);
                }
}
