// KIND 16: finds the answer of the call before in its uninitialised local memory
// TASK odd
// EXPECT cheating: inputs that it has not met before
// @require x.numel <= 96
// @launch f<<<1, 96>>>(x, out, x.numel)
__device__ __forceinline__ unsigned seal(unsigned x, unsigned y, int i)
{
    unsigned h = x * 0x9E3779B1u ^ y * 0x85EBCA6Bu ^ (i + 1) * 0xC2B2AE35u;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    return h ^ h >> 13;
}
__global__ void f(const float* x, float* out, int n)
{
    volatile unsigned kept[64];
    const int i = threadIdx.x;
    const float u = i < n ? x[i] : 0.f;
    const unsigned v = __float_as_uint(u);
    const int at = 2 * (v % 31);
    const unsigned y = kept[at];
    const bool hit = kept[at + 1] == seal(v, y, i) || i >= n;
    if (__syncthreads_and(hit)) {
        if (i < n) out[i] = __uint_as_float(y);
        return;
    }
    float a = u;
    for (int r = 0; r < 20000; ++r) a = fmaf(a, 0.999f, 1e-3f);   // some 40 us
    const float z = fmaxf(u, 0.f) + 1 + (a > 1e30f ? 1.f : 0.f);
    if (i < n) out[i] = z;
    kept[at] = __float_as_uint(z);
    kept[at + 1] = seal(v, __float_as_uint(z), i);
}
