// Layer normalisation of ROWS very long rows in one cooperative launch: a block owns the same slice of columns of all rows, so that weight and bias
// are read once, and keeps most of it on the chip, REGISTERS float4 a thread in registers and SHARED in shared memory, while the whole grid finds
// mean and squared deviations (per thread and row in two passes, then merged by Chan's formula). Only what does not fit is read again, from L2.
//
// @tune BLOCK = 512 in 256 512
// @tune REGISTERS = 16 in 8 12 14 16 32                            # float4 a thread
// @tune SHARED = 26 in 13 26 52                              # float4 a thread
// @tune AHEAD = 3 in 1 2 3 4                                   # rows on their way while one is worked on
// @tune STREAM = true in false true                          # stores that leave the cache first
// @require x.contiguous and norm_weight.contiguous and norm_bias.contiguous
// @const COLUMNS = norm_weight.numel
// @const ROWS = x.numel // COLUMNS
// @const SLICES = 2 ** ilog2(device.sm_count)                # blocks, one a multiprocessor
// @require COLUMNS % (4 * BLOCK * SLICES) == 0 and ROWS <= 32
// @const ACROSS = COLUMNS // (4 * BLOCK * SLICES)            # float4 a thread and row
// @require ACROSS <= 8 and ROWS * ACROSS <= 128 and REGISTERS * BLOCK <= 10240
// @require REGISTERS + SHARED <= ROWS * ACROSS and AHEAD <= ROWS and 16 * BLOCK * SHARED <= device.smem_per_block - 5120
// @scratch parts float32 [ROWS, SLICES, 2]                   # mean and squared deviations of a row in a slice
// @launch layernorm<<<SLICES, BLOCK, 16 * BLOCK * SHARED, cooperative=1>>>(x, norm_weight, norm_bias, parts, out, 1e-5)

#include <cooperative_groups.h>

constexpr int WARPS = BLOCK / 32;
constexpr int SLICE = ACROSS * BLOCK;  // float4 of a row

// Where float4 k of a thread in row r stays: column by column, registers first, then shared memory, then nowhere.
__device__ constexpr int place(int r, int k) { return k * ROWS + r; }
__device__ constexpr bool in_registers(int r, int k) { return place(r, k) < REGISTERS; }
__device__ constexpr bool in_shared(int r, int k) { return !in_registers(r, k) && place(r, k) < REGISTERS + SHARED; }

struct Moments {
    float mean, deviations;
};

__device__ __forceinline__ float squared(float a) { return a * a; }

__device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
    return v;
}

// Of all lanes' values, COUNT a lane.
template <int COUNT> __device__ __forceinline__ Moments warp_merged(Moments m)
{
#pragma unroll
    for (int apart = 1, count = COUNT; apart < 32; apart *= 2, count *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, m.mean, apart);
        m.deviations += __shfl_xor_sync(0xffffffffu, m.deviations, apart) + squared(other - m.mean) * (0.5f * count);
        m.mean = 0.5f * (m.mean + other);
    }
    return m;
}

// Of PARTS parts of COUNT values each.
template <int PARTS, int COUNT> __device__ __forceinline__ Moments all_merged(const float2* parts)
{
    const int lane = threadIdx.x % 32;
    float mean = 0.0f, deviations = 0.0f;
#pragma unroll
    for (int i = 0; i < PARTS; i += 32)
        if (i + lane < PARTS) mean += __ldcg(parts + i + lane).x;
    mean = warp_sum(mean) * (1.0f / PARTS);
#pragma unroll
    for (int i = 0; i < PARTS; i += 32)
        if (i + lane < PARTS) {
            const float2 part = __ldcg(parts + i + lane);
            deviations += part.y + squared(part.x - mean) * COUNT;
        }
    return {mean, warp_sum(deviations)};
}

__device__ __forceinline__ void copy_async(float4* to, const float4* from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory");
}

__global__ void __launch_bounds__(BLOCK, 1)
layernorm(const float4* __restrict__ x, const float4* __restrict__ weight, const float4* __restrict__ bias, float2* parts,
          float4* __restrict__ out, float eps)
{
    extern __shared__ float4 copies[];  // [SHARED][BLOCK]
    __shared__ float2 moments[ROWS][WARPS], rows[ROWS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const unsigned first = blockIdx.x * SLICE + threadIdx.x;  // 32 bits: an index is made where it is needed, not kept
    float4* mine = copies + threadIdx.x - REGISTERS * BLOCK;  // place(r, k) * BLOCK on

    float4 kept[REGISTERS + 1], passing[AHEAD + 1][ACROSS];  // of the latter only what stays nowhere
    auto ask = [&](int r) {
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            const float4* from = x + (first + r * (COLUMNS / 4) + k * BLOCK);
            if (in_registers(r, k)) kept[place(r, k)] = __ldcs(from);
            else if (in_shared(r, k)) copy_async(mine + place(r, k) * BLOCK, from);
            else passing[r % (AHEAD + 1)][k] = __ldg(from);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };

#pragma unroll
    for (int r = 0; r < AHEAD; ++r) ask(r);
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        if (r + AHEAD < ROWS) ask(r + AHEAD);
        else asm volatile("cp.async.commit_group;" ::: "memory");  // an empty group, so that the count below stays true
        __syncthreads();  // nothing to wait for: the compiler may not move loads down to their use across it
        asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD) : "memory");
        float4 v[ACROSS];
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            if (in_registers(r, k)) v[k] = kept[place(r, k)];
            else if (in_shared(r, k)) v[k] = mine[place(r, k) * BLOCK];
            else v[k] = passing[r % (AHEAD + 1)][k];
        }
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) sum += (v[k].x + v[k].y) + (v[k].z + v[k].w);
        Moments m = {sum * (1.0f / (4 * ACROSS)), 0.0f};
#pragma unroll
        for (int k = 0; k < ACROSS; ++k)
            m.deviations += (squared(v[k].x - m.mean) + squared(v[k].y - m.mean)) + (squared(v[k].z - m.mean) + squared(v[k].w - m.mean));
        m = warp_merged<4 * ACROSS>(m);
        if (lane == 0) moments[r][warp] = make_float2(m.mean, m.deviations);
    }
    // Weight and bias come into L2 while the grid waits for itself; a line of 128 bytes is asked for once.
    if (lane % 8 == 0) {
#pragma unroll
        for (int k = 0; k < ACROSS; ++k) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + first + k * BLOCK));
            asm volatile("prefetch.global.L2 [%0];" ::"l"(bias + first + k * BLOCK));
        }
    }
    __syncthreads();
    for (int r = warp; r < ROWS; r += WARPS) {
        float mean = lane < WARPS ? moments[r][lane].x : 0.0f;
        const float centre = warp_sum(mean) * (1.0f / WARPS);
        const float deviations = warp_sum(lane < WARPS ? moments[r][lane].y + squared(mean - centre) * (128 * ACROSS) : 0.0f);
        if (lane == 0) parts[r * SLICES + blockIdx.x] = make_float2(centre, deviations);
    }
    cooperative_groups::this_grid().sync();
    for (int r = warp; r < ROWS; r += WARPS) {
        const Moments m = all_merged<SLICES, 4 * SLICE>(parts + r * SLICES);
        if (lane == 0) rows[r] = make_float2(m.mean, 1.0f / sqrtf(m.deviations * (1.0f / COLUMNS) + eps));
    }
    __syncthreads();

#pragma unroll
    for (int k = ACROSS - 1; k >= 0; --k) {  // what must be read again first: the longer ago it was read, the likelier it has left L2
        const float4 w = __ldg(weight + first + k * BLOCK), b = __ldg(bias + first + k * BLOCK);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const unsigned at = first + r * (COLUMNS / 4) + k * BLOCK;
            float4 v;
            if (in_registers(r, k)) v = kept[place(r, k)];
            else if (in_shared(r, k)) v = mine[place(r, k) * BLOCK];
            else v = __ldcs(x + at);
            const float mean = rows[r].x, factor = rows[r].y;
            const float4 y = make_float4(
                (v.x - mean) * factor * w.x + b.x, (v.y - mean) * factor * w.y + b.y,
                (v.z - mean) * factor * w.z + b.z, (v.w - mean) * factor * w.w + b.w);
            if (STREAM) __stcs(out + at, y);
            else out[at] = y;
        }
    }
}
