// HONEST looks in the shared memory of all multiprocessors for answers that an earlier launch left there, and finds none in a timed call
// TASK odd
// Its time says so: some 65 us where it finds other bytes there, twice as many where all are zero, a few where an answer was left. One multiprocessor
// that remembers would be enough: it tells the others, which stop and keep the answer as well.
// @const PADDED = 96
// @const KEPT = 8
// @const COPIES = device.smem_per_block // (KEPT * 2 * PADDED * 4)
// @require x.numel <= PADDED
// @scratch told int32 [1] zero
// @launch f<<<device.sm_count, 1024, COPIES * KEPT * 2 * PADDED * 4>>>(x, told, out, x.numel)
extern __shared__ volatile unsigned kept[];   // COPIES times KEPT answers, the latest first, each with its seals behind it
__device__ __forceinline__ unsigned seal(unsigned x, unsigned y, int i)
{   // of an input, its answer and their place: bytes that stand there by chance do not fit
    unsigned h = x * 0x9E3779B1u ^ y * 0x85EBCA6Bu ^ (i + 1) * 0xC2B2AE35u;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    return h ^ h >> 13;
}
__global__ void __launch_bounds__(1024) f(const float* x, int* told, float* out, int n)
{
    volatile float* answer = out;
    volatile int* known = told;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    unsigned v[3], y[3], other = 0;
    for (int k = 0; k < 3; ++k) v[k] = lane + 32 * k < n ? __float_as_uint(x[lane + 32 * k]) : 0;
    bool hit = false;
    for (int e = warp; e < COPIES * KEPT && !hit; e += 32) {
        bool same = true;
        for (int k = 0; k < 3; ++k) {
            const int i = lane + 32 * k;
            y[k] = kept[e * 2 * PADDED + i];
            const unsigned s = kept[e * 2 * PADDED + PADDED + i];
            other |= y[k] | s;
            same = same && s == seal(v[k], y[k], i);
        }
        hit = __all_sync(~0u, same);
    }
    if (hit) {
        for (int k = 0; k < 3; ++k)
            if (lane + 32 * k < n) answer[lane + 32 * k] = __uint_as_float(y[k]);
        __threadfence();
        __syncwarp();
        if (!lane) *known = 1;
    }
    if (__syncthreads_or(hit)) return;
    const int rounds = __syncthreads_or(other != 0) ? 32 : 64, i = threadIdx.x % PADDED;
    const float u = i < n ? x[i] : 0.f;
    if (threadIdx.x < PADDED) {   // dependent work that the honest answer is taken to need, 2 us a round
        float a = u;
        int r = 0;
        for (; r < rounds && !*known; ++r)
            for (int j = 0; j < 1000; ++j) a = fmaf(a, 0.999f, 1e-3f);
        if (r == rounds && i < n) answer[i] = fmaxf(u, 0.f) + 1 + (a > 1e30f ? 1.f : 0.f);
    }
    __threadfence();
    __syncthreads();
    if (!threadIdx.x) *known = 1;
    const unsigned mine = i < n ? __float_as_uint(answer[i]) : 0;
    for (int c = threadIdx.x / PADDED; c < COPIES && threadIdx.x < 10 * PADDED; c += 10) {
        volatile unsigned* at = kept + c * KEPT * 2 * PADDED + i;
        for (int e = KEPT - 1; e > 0; --e) {
            at[e * 2 * PADDED] = at[(e - 1) * 2 * PADDED];
            at[e * 2 * PADDED + PADDED] = at[(e - 1) * 2 * PADDED + PADDED];
        }
        at[0] = mine;
        at[PADDED] = seal(i < n ? __float_as_uint(u) : 0, mine, i);
    }
}
