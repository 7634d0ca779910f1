// Attention with all keys and values of a head in shared memory (values arrive while scores are computed) and PER_WARP queries a warp: scores stay
// in registers, lane l holding keys l, l + 32, ..., so softmax is a matter of shuffles; the product with the values is divided by the sum at the end.
//
// @tune WARPS = 8 in 4 8 16
// @tune PER_WARP = 4 in 2 4                                  # queries a warp
// @require q.contiguous and k.contiguous and v.contiguous
// @const DIM = q.shape[-1]
// @const QUERIES = q.shape[-2]
// @const KEYS = k.shape[-2]
// @const HEADS = q.numel // (QUERIES * DIM)
// @require DIM == 64 and v.shape[-1] == 64 and KEYS % 32 == 0 and KEYS <= 256 and QUERIES % (WARPS * PER_WARP) == 0
// @require k.numel == HEADS * KEYS * DIM and v.numel == HEADS * KEYS * DIM
// @const PADDED = DIM + 4                                    # a key in shared memory: eight lanes then read 32 different banks
// @const SHARED = 4 * (KEYS * PADDED + KEYS * DIM + WARPS * PER_WARP * (DIM + KEYS))
// @require SHARED <= device.smem_per_block
// @launch attend<<<(QUERIES // (WARPS * PER_WARP), HEADS), 32 * WARPS, SHARED>>>(q, k, v, out, 1.0 / DIM ** 0.5)

constexpr int THREADS = 32 * WARPS, BLOCK_QUERIES = WARPS * PER_WARP, PER_LANE = KEYS / 32;

__device__ __forceinline__ float warp_maximum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, apart));
    return v;
}

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

// 16 bytes to shared memory, asynchronously.
__device__ __forceinline__ void copy_async(float* to, const float* from)
{
    const unsigned address = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}

__device__ __forceinline__ void end_of_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most PENDING of this thread's groups of copies are under way.
template <int PENDING> __device__ __forceinline__ void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory"); }

__device__ __forceinline__ float dot(float4 a, float4 b, float sum)
{
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    return fmaf(a.w, b.w, sum);
}

__device__ __forceinline__ void add_scaled(float4& sum, float a, float4 b)
{
    sum.x = fmaf(a, b.x, sum.x);
    sum.y = fmaf(a, b.y, sum.y);
    sum.z = fmaf(a, b.z, sum.z);
    sum.w = fmaf(a, b.w, sum.w);
}

__global__ void __launch_bounds__(THREADS)
attend(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v, float* __restrict__ out, float scale)
{
    extern __shared__ float4 memory[];
    float* keys = (float*)memory;                     // KEYS x PADDED
    float* values = keys + KEYS * PADDED;             // KEYS x DIM
    float* queries = values + KEYS * DIM;             // BLOCK_QUERIES x DIM
    float* weights = queries + BLOCK_QUERIES * DIM;   // BLOCK_QUERIES x KEYS
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 * PER_WARP;
    const size_t head = (size_t)blockIdx.y * KEYS * DIM, first = ((size_t)blockIdx.y * QUERIES + blockIdx.x * BLOCK_QUERIES) * DIM;

    for (int i = threadIdx.x; i < BLOCK_QUERIES * DIM / 4; i += THREADS) copy_async(queries + 4 * i, q + first + 4 * i);
    for (int i = threadIdx.x; i < KEYS * DIM / 4; i += THREADS) copy_async(keys + i / (DIM / 4) * PADDED + i % (DIM / 4) * 4, k + head + 4 * i);
    end_of_group();
    for (int i = threadIdx.x; i < KEYS * DIM / 4; i += THREADS) copy_async(values + 4 * i, v + head + 4 * i);
    end_of_group();
    wait_for_groups<1>();
    __syncthreads();

    float score[PER_WARP][PER_LANE] = {};
#pragma unroll 2
    for (int d = 0; d < DIM; d += 4) {
        float4 a[PER_WARP];
#pragma unroll
        for (int r = 0; r < PER_WARP; ++r) a[r] = *(const float4*)(queries + (mine + r) * DIM + d);
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) {
            const float4 b = *(const float4*)(keys + (lane + 32 * j) * PADDED + d);
#pragma unroll
            for (int r = 0; r < PER_WARP; ++r) score[r][j] = dot(a[r], b, score[r][j]);
        }
    }

    float total[PER_WARP];
#pragma unroll
    for (int r = 0; r < PER_WARP; ++r) {
        float highest = -INFINITY;
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) {
            score[r][j] *= scale;
            highest = fmaxf(highest, score[r][j]);
        }
        highest = warp_maximum(highest);
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < PER_LANE; ++j) {
            const float e = expf(score[r][j] - highest);
            weights[(mine + r) * KEYS + lane + 32 * j] = e;
            sum += e;
        }
        total[r] = warp_sum(sum);
    }
    wait_for_groups<0>();
    __syncthreads();

    // Half a warp takes every second group of four keys; a lane has four columns of all of the warp's queries.
    const int column = lane % 16 * 4;
    float4 sum[PER_WARP];
#pragma unroll
    for (int r = 0; r < PER_WARP; ++r) sum[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 2
    for (int j = lane / 16 * 4; j < KEYS; j += 8) {
        const float* value = values + j * DIM + column;
        const float4 v0 = *(const float4*)value, v1 = *(const float4*)(value + DIM);
        const float4 v2 = *(const float4*)(value + 2 * DIM), v3 = *(const float4*)(value + 3 * DIM);
#pragma unroll
        for (int r = 0; r < PER_WARP; ++r) {
            const float4 w = *(const float4*)(weights + (mine + r) * KEYS + j);
            add_scaled(sum[r], w.x, v0);
            add_scaled(sum[r], w.y, v1);
            add_scaled(sum[r], w.z, v2);
            add_scaled(sum[r], w.w, v3);
        }
    }
#pragma unroll
    for (int r = 0; r < PER_WARP; ++r) {
        sum[r].x += __shfl_xor_sync(0xffffffffu, sum[r].x, 16);
        sum[r].y += __shfl_xor_sync(0xffffffffu, sum[r].y, 16);
        sum[r].z += __shfl_xor_sync(0xffffffffu, sum[r].z, 16);
        sum[r].w += __shfl_xor_sync(0xffffffffu, sum[r].w, 16);
        const float t = total[r];
        if (lane < 16)
            *(float4*)(out + first + (mine + r) * DIM + column) = make_float4(sum[r].x / t, sum[r].y / t, sum[r].z / t, sum[r].w / t);
    }
}
