// Mean square over the middle dimension: a block owns LANES neighbouring float4 columns of one batch and splits the rows among its threads, so
// that all loads are coalesced and independent; a tree in shared memory adds the parts. One pass, nothing in between is written.
//
// @tune LANES = 8 in 8 16 32                                # float4 columns a block
// @tune BLOCK = 256 in 256 512 1024
// @tune LINES = 0 in 0 128 256                             # bytes that a miss brings into L2, 0: as the GPU likes
// @tune RESIDENT = 2 in 1 2 4 8                              # blocks a multiprocessor has the registers for
// @require x.ndim == 3 and x.contiguous
// @const ROWS = x.shape[1]
// @const COLUMNS = x.shape[2]
// @require RESIDENT * BLOCK <= device.max_threads_per_sm and COLUMNS % (4 * LANES) == 0 and ROWS % (BLOCK // LANES) == 0
// @launch mean_square<<<(COLUMNS // (4 * LANES), x.shape[0]), BLOCK>>>(x, out)

constexpr int GROUPS = BLOCK / LANES;  // threads of a column, a power of two
constexpr int PER_THREAD = ROWS / GROUPS;

// Streaming loads; LINES asks L2 to fetch that many neighbouring bytes of memory along with a miss.
__device__ __forceinline__ float4 streamed(const float4* from)
{
    float4 v;
    if (LINES == 0) return __ldcs(from);
    if (LINES == 128)
        asm volatile("ld.global.L1::no_allocate.L2::128B.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    else
        asm volatile("ld.global.L1::no_allocate.L2::256B.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ float4 added(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

__global__ void __launch_bounds__(BLOCK, RESIDENT) mean_square(const float4* __restrict__ x, float4* __restrict__ out)
{
    __shared__ float4 part[GROUPS][LANES];
    const int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    const int column = blockIdx.x * LANES + lane;
    const float4* first = x + ((size_t)blockIdx.y * ROWS + group) * (COLUMNS / 4) + column;

    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll(PER_THREAD < 16 ? PER_THREAD : 16)
    for (int i = 0; i < PER_THREAD; ++i) {
        const float4 v = streamed(first + (size_t)i * GROUPS * (COLUMNS / 4));
        sum.x += v.x * v.x;
        sum.y += v.y * v.y;
        sum.z += v.z * v.z;
        sum.w += v.w * v.w;
    }
    part[group][lane] = sum;
    __syncthreads();
#pragma unroll
    for (int half = GROUPS / 2; half > 0; half /= 2) {
        if (group < half) part[group][lane] = added(part[group][lane], part[group + half][lane]);
        __syncthreads();
    }
    if (group == 0) {
        const float4 total = part[0][lane];
        out[(size_t)blockIdx.y * (COLUMNS / 4) + column] = make_float4(total.x / ROWS, total.y / ROWS, total.z / ROWS, total.w / ROWS);
    }
}
