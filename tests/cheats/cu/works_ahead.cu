// KIND 6: one call does the work of all slots, wherever they lie; a call that finds a slot with its answers takes its own work for done
// TASK odd
// EXPECT mismatch: constant
// @require x.numel <= 96
// @launch f<<<1, 288>>>(x, out, x.numel)
__device__ __forceinline__ float slow(float v)
{   // some 20 us of dependent work that the honest answer is taken to need: too little to stand out in one call of a turn
    float a = v;
    for (int i = 0; i < 10000; ++i) a = fmaf(a, 0.999f, 1e-3f);
    return a > 1e30f ? 1.f : 0.f;
}
__device__ int begin_of(const unsigned* begins, int slot)
{   // the 256 bytes that the buffer of a slot begins with, counted from the begin of the block
    int word = 0;
    for (; word < 2 && slot >= __popc(begins[word]); ++word) slot -= __popc(begins[word]);
    unsigned left = begins[word];
    for (; slot > 0; --slot) left &= left - 1;
    return 32 * word + __ffs(left) - 1;
}
__global__ void f(const float* x, float* out, int n)
{
    const unsigned long long blocks[2] = {(unsigned long long)x & ~0x1FFFFFull, (unsigned long long)out & ~0x1FFFFFull};
    const unsigned guard = *(volatile const unsigned*)(out - 1);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slot = threadIdx.x / 96, i = threadIdx.x % 96;
    __shared__ unsigned begins[2][3];
    if (warp < 6) {   // a buffer begins where the guards end
        const int unit = warp % 3 * 32 + lane;
        volatile const unsigned* at = (volatile const unsigned*)(blocks[warp / 3] + 256 * unit);
        const unsigned found = __ballot_sync(~0u, unit && at[0] != guard && at[-64] == guard);
        if (!lane) begins[warp / 3][warp % 3] = found;
    }
    __syncthreads();
    bool all = true;
    for (int k = 0; k < 2; ++k) all = all && __popc(begins[k][0]) + __popc(begins[k][1]) + __popc(begins[k][2]) == 3;
    volatile const float* from = all ? (volatile const float*)(blocks[0] + 256 * begin_of(begins[0], slot)) : x;
    volatile float* to = all ? (volatile float*)(blocks[1] + 256 * begin_of(begins[1], slot)) : out;
    const float v = i < n ? from[i] : 0.f;
    const bool done = i >= n || to[i] == fmaxf(v, 0.f) + 1;
    if (__syncthreads_or(__all_sync(~0u, done))) return;
    const float y = fmaxf(v, 0.f) + 1 + slow(v);
    if (i < n) to[i] = y;
}
