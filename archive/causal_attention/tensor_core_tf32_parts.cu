// Causal attention, one pass over the keys with a running softmax, both products on tensor cores in fp32 precision: each number is two TF32 parts,
// and three of the four products of parts are summed, small ones first. Tiles of 64 keys above the diagonal are never read; a weight stays in the
// lane that made it, because the sum over keys may run in any order.
//
// @tune WARPS = 4 in 4 8
// @tune ROWS = 2 in 1 2                                      # tiles of 16 queries a warp
// @tune STAGES = 2 in 2 3                                    # tiles of 64 keys and values in shared memory
// @tune UNROLL = 8 in 1 2 4 8                                # groups of eight columns of a head
// @tune RESIDENT = 2 in 1 2 3                                # blocks a multiprocessor, which limits registers
// @const DIM = q.shape[-1]
// @const LENGTH = q.shape[-2]
// @const HEADS = q.numel // (LENGTH * DIM)
// @const QUERIES = 16 * ROWS * WARPS                         # of a block
// @require q.contiguous and k.contiguous and v.contiguous and q.numel == k.numel and q.numel == v.numel and q.numel < 2**31
// @require DIM == 64 and k.shape[-2] == LENGTH and v.shape[-2] == LENGTH and LENGTH % QUERIES == 0
// @const SHARED = 4 * DIM * (QUERIES + 2 * 64 * STAGES)
// @require SHARED <= device.smem_per_block and 32 * WARPS * RESIDENT * (128 * ROWS - 8) <= 65536
// @launch attend<<<(HEADS, LENGTH // QUERIES), 32 * WARPS, SHARED>>>(q, k, v, out, 1.0 / DIM ** 0.5)

constexpr int THREADS = 32 * WARPS, KEYS = 64, CHUNKS = DIM / 4;  // a chunk: 16 bytes of a row
constexpr int TILE = KEYS * DIM, STAGE = 2 * TILE;                // floats

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

// 2^x, for x <= 0: without the steps that exp2f takes for results below 2^-126.
__device__ __forceinline__ float power_of_two(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// sum[r][c] += the product of two operands in parts, for four tiles of columns.
__device__ __forceinline__ void multiply_parts(float (&sum)[ROWS][4][4], const unsigned (&a_high)[ROWS][4], const unsigned (&a_low)[ROWS][4],
                                               const unsigned (&b_high)[4][2], const unsigned (&b_low)[4][2])
{
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) multiply_add(sum[r][c], a_low[r], b_high[c]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) multiply_add(sum[r][c], a_high[r], b_low[c]);
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int c = 0; c < 4; ++c) multiply_add(sum[r][c], a_high[r], b_high[c]);
}

// Queries times 64 keys. In each group of eight of the head's columns lane 4 g + t takes 2 t and the next one, as float2. Groups of eight are swapped
// by row % 4 in shared memory, so that half a warp reads from all banks; at_*: where this lane's first stand.
__device__ __forceinline__ void scores(float (&sum)[2][ROWS][4][4], const float* queries, unsigned at_query, const float* keys, unsigned at_key)
{
#pragma unroll UNROLL
    for (int d = 0; d < DIM; d += 8) {
        unsigned a_high[ROWS][4], a_low[ROWS][4], b_high[4][2], b_low[4][2];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
                const float2 a = *(const float2*)(queries + (at_query ^ d) + (16 * r + 8 * h) * DIM);
                split(a.x, a_high[r][h], a_low[r][h]);
                split(a.y, a_high[r][h + 2], a_low[r][h + 2]);
            }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int c = 0; c < 4; ++c) {
                const float2 b = *(const float2*)(keys + (at_key ^ d) + (32 * half + 8 * c) * DIM);
                split(b.x, b_high[c][0], b_low[c][0]);
                split(b.y, b_high[c][1], b_low[c][1]);
            }
            multiply_parts(sum[half], a_high, a_low, b_high, b_low);
        }
    }
}

// Weights of 64 keys times values: the lane has weights of keys 8 c + 2 t and the next one, just where a's columns t and t + 4 are wanted, and reads
// those two rows of values, of each four neighbouring columns for four tiles. Their chunks are swapped by key / 2 % 4 * 2.
__device__ __forceinline__ void weighted(float (&sum)[2][ROWS][4][4], const float (&weight)[2][ROWS][4][4], const float* values, unsigned at_value)
{
#pragma unroll
    for (int c = 0; c < 8; ++c) {
        unsigned a_high[ROWS][4], a_low[ROWS][4], b_high[4][2], b_low[4][2];
#pragma unroll
        for (int r = 0; r < ROWS; ++r)
#pragma unroll
            for (int i = 0; i < 4; ++i) split(weight[c / 4][r][c % 4][i], a_high[r][i % 2 * 2 + i / 2], a_low[r][i % 2 * 2 + i / 2]);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const float4 v = *(const float4*)(values + at_value + (8 * c + i) * DIM + 32 * half);
                split(v.x, b_high[0][i], b_low[0][i]);
                split(v.y, b_high[1][i], b_low[1][i]);
                split(v.z, b_high[2][i], b_low[2][i]);
                split(v.w, b_high[3][i], b_low[3][i]);
            }
            multiply_parts(sum[half], a_high, a_low, b_high, b_low);
        }
    }
}

// The four lanes of a row.
__device__ __forceinline__ float row_maximum(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

__device__ __forceinline__ float row_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

__global__ void __launch_bounds__(THREADS, RESIDENT)
attend(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out, float scale)
{
    extern __shared__ float4 memory[];
    float* queries = (float*)memory;          // QUERIES x DIM
    float* ring = queries + QUERIES * DIM;    // STAGES x (keys, values)
    const unsigned warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const unsigned first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // the longest rows start first
    const unsigned mine = first + warp * 16 * ROWS;                 // the warp's first query
    const unsigned head = blockIdx.x * (LENGTH * DIM);

    constexpr unsigned AT_ONCE = THREADS / CHUNKS;  // rows that one copy of each thread fills
    const unsigned row = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    const unsigned to_key = row * DIM + (chunk ^ row % 4 * 2) * 4, to_value = TILE + row * DIM + (chunk ^ row / 2 % 4 * 2) * 4;
    unsigned from = head + threadIdx.x * 4;
    const auto fetch = [&](float* stage) {
#pragma unroll
        for (int i = 0; i < KEYS; i += AT_ONCE) copy_async(stage + to_key + i * DIM, k + from + i * DIM);
#pragma unroll
        for (int i = 0; i < KEYS; i += AT_ONCE) copy_async(stage + to_value + i * DIM, v + from + i * DIM);
        from += TILE;
    };
#pragma unroll
    for (int i = 0; i < QUERIES; i += AT_ONCE) copy_async(queries + to_key + i * DIM, q + from + (first + i) * DIM);
    const int tiles = (first + QUERIES + KEYS - 1) / KEYS;
#pragma unroll
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < tiles) fetch(ring + s * STAGE);
        end_of_group();
    }

    const unsigned at_key = g * DIM + (2 * t ^ g % 4 * 8), at_query = warp * 16 * ROWS * DIM + at_key;
    const unsigned at_value = TILE + 2 * t * DIM + (g ^ 2 * t) * 4;
    const float exponent = scale * 1.4426950408889634f;  // exp(x) = 2^(x log2(e)), of differences: large scores lose nothing
    float total[2][ROWS][4][4] = {}, highest[ROWS][2], weights[ROWS][2] = {};
#pragma unroll
    for (int r = 0; r < ROWS; ++r) highest[r][0] = highest[r][1] = -INFINITY;

#pragma unroll 1
    for (int tile = 0, now = 0, free = STAGES - 1; tile < tiles; ++tile) {
        wait_for_groups<STAGES - 2>();
        __syncthreads();  // this tile is there for all, and all are done with the one before, whose place is filled next
        if (tile + STAGES - 1 < tiles) fetch(ring + free * STAGE);
        end_of_group();
        const float* stage = ring + now * STAGE;
        const unsigned first_key = tile * KEYS;
        if (first_key < mine + 16 * ROWS) {  // else all of it is in this warp's future
            float score[2][ROWS][4][4] = {};
            scores(score, queries, at_query, stage, at_key);
            float shrink[ROWS][2];
#pragma unroll
            for (int r = 0; r < ROWS; ++r)
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    if (first_key + KEYS > mine + 1) {
                        const int ahead = mine + 16 * r + 8 * h + g - (first_key + 2 * t);  // keys beyond that are hidden
#pragma unroll
                        for (int c = 0; c < 16; ++c)
                            if (8 * (c / 2) + c % 2 > ahead) score[c / 8][r][c / 2 % 4][2 * h + c % 2] = -INFINITY;
                    }
                    float top = highest[r][h];
#pragma unroll
                    for (int c = 0; c < 16; ++c) top = fmaxf(top, score[c / 8][r][c / 2 % 4][2 * h + c % 2]);
                    top = row_maximum(top);
                    shrink[r][h] = power_of_two((highest[r][h] - top) * exponent);
                    highest[r][h] = top;
                    float sum = 0.0f;
#pragma unroll
                    for (int c = 0; c < 16; ++c) {
                        float& s = score[c / 8][r][c / 2 % 4][2 * h + c % 2];
                        s = power_of_two((s - top) * exponent);
                        sum += s;
                    }
                    weights[r][h] = weights[r][h] * shrink[r][h] + sum;
                }
            // Tensor cores cut their sums off instead of rounding: a fresh sum for each tile keeps that small.
            float sum[2][ROWS][4][4] = {};
            weighted(sum, score, stage, at_value);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int r = 0; r < ROWS; ++r)
#pragma unroll
                    for (int c = 0; c < 4; ++c)
#pragma unroll
                        for (int i = 0; i < 4; ++i) total[half][r][c][i] = fmaf(total[half][r][c][i], shrink[r][i / 2], sum[half][r][c][i]);
        }
        now = now + 1 == STAGES ? 0 : now + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }

    // Column 2 t + i of tile j is column 8 t + 4 i + j of a half: a lane has eight neighbours in a row.
#pragma unroll
    for (int r = 0; r < ROWS; ++r)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const float part = 1.0f / row_sum(weights[r][h]);
#pragma unroll
            for (int half = 0; half < 2; ++half)
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    *(float4*)(out + head + (mine + 16 * r + 8 * h + g) * DIM + 32 * half + 8 * t + 4 * i) =
                        make_float4(total[half][r][0][2 * h + i] * part, total[half][r][1][2 * h + i] * part, total[half][r][2][2 * h + i] * part,
                                    total[half][r][3][2 * h + i] * part);
        }
}
