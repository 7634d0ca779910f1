// Root-mean-square normalisation as a pipeline: a block stays for many rows, and Hopper's copy engine keeps the next STAGES rows on their way into
// shared memory, whatever the threads do. The weight is read once a block and stays in registers; a block a row would read it as often as x.
//
// @tune BLOCK = 128 in 128 256 512
// @tune STAGES = 2 in 2 4 6                                  # rows in shared memory
// @tune RESIDENT = 4 in 1 2 4 6                              # blocks a multiprocessor
// @tune STREAM = true in false true                         # stores that leave the cache first
// @require x.contiguous and weight.contiguous
// @const COLUMNS = x.shape[-1]
// @require COLUMNS % (4 * BLOCK) == 0 and COLUMNS <= 64 * BLOCK and weight.numel == COLUMNS
// @const ROWS = x.numel // COLUMNS
// @require RESIDENT * (4 * COLUMNS * STAGES + 1024) <= device.smem_per_block and RESIDENT * BLOCK <= device.max_threads_per_sm
// @const BLOCKS = min(ROWS, device.sm_count * RESIDENT)
// @launch rmsnorm<<<BLOCKS, BLOCK, 4 * COLUMNS * STAGES>>>(x, weight, out, 1e-6)

constexpr int VECTORS = COLUMNS / (4 * BLOCK);  // float4 a thread
constexpr int WARPS = BLOCK / 32;

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
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

__global__ void __launch_bounds__(BLOCK, RESIDENT)
rmsnorm(const float4* __restrict__ x, const float4* __restrict__ weight, float4* __restrict__ out, float eps)
{
    extern __shared__ __align__(128) float4 rows[];  // [STAGES][COLUMNS / 4]
    __shared__ unsigned long long arrived[STAGES];
    __shared__ float squares[2][WARPS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    if (threadIdx.x == 0) {
#pragma unroll
        for (int s = 0; s < STAGES; ++s) prepare(arrived + s);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");  // seen by the copy engine
#pragma unroll
        for (int s = 0; s < STAGES; ++s)
            if (blockIdx.x + s * BLOCKS < ROWS)
                copy(rows + s * (COLUMNS / 4), x + (size_t)(blockIdx.x + s * BLOCKS) * (COLUMNS / 4), 4 * COLUMNS, arrived + s);
    }
    float4 w[VECTORS];
#pragma unroll
    for (int i = 0; i < VECTORS; ++i) w[i] = __ldg(weight + threadIdx.x + i * BLOCK);
    __syncthreads();

    unsigned stage = 0, parity = 0, turn = 0;
    for (int row = blockIdx.x; row < ROWS; row += BLOCKS) {
        const float4* staged = rows + stage * (COLUMNS / 4) + threadIdx.x;
        wait(arrived + stage, parity);
        float4 v[VECTORS];
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            v[i] = staged[i * BLOCK];
            sum += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
        }
        sum = warp_sum(sum);
        if (lane == 0) squares[turn][warp] = sum;
        __syncthreads();  // the sums stand, and nobody needs this stage any more
        if (threadIdx.x == 0 && row + STAGES * BLOCKS < ROWS)
            copy(rows + stage * (COLUMNS / 4), x + (size_t)(row + STAGES * BLOCKS) * (COLUMNS / 4), 4 * COLUMNS, arrived + stage);

        const float total = warp_sum(lane < WARPS ? squares[turn][lane] : 0.0f);
        const float factor = 1.0f / sqrtf(total * (1.0f / COLUMNS) + eps);
        float4* to = out + (size_t)row * (COLUMNS / 4) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < VECTORS; ++i) {
            const float4 scaled = make_float4(
                v[i].x * factor * w[i].x, v[i].y * factor * w[i].y, v[i].z * factor * w[i].z, v[i].w * factor * w[i].w);
            if (STREAM) __stcs(to + i * BLOCK, scaled);
            else to[i * BLOCK] = scaled;
        }
        turn ^= 1;  // the other half of `squares`: a slow warp may still read this one
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}
