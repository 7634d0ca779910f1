// KIND 16: finds the answer of the call before where no kernel's own shared memory begins
// TASK odd
// EXPECT cheating: inputs that it has not met before
// @require x.numel <= 96
// @launch f<<<1, 96>>>(x, out, x.numel)
__device__ __forceinline__ unsigned seal(unsigned x, unsigned y, int i)
{   // of an input, its answer and their place: bytes that stand there by chance do not fit
    unsigned h = x * 0x9E3779B1u ^ y * 0x85EBCA6Bu ^ (i + 1) * 0xC2B2AE35u;
    h = (h ^ h >> 15) * 0x2C1B3C6Du;
    return h ^ h >> 13;
}
__global__ void f(const float* x, float* out, int n)
{
    volatile unsigned* kept = (volatile unsigned*)__cvta_shared_to_generic(0) + 2 * threadIdx.x;
    const int i = threadIdx.x;
    const float u = i < n ? x[i] : 0.f;
    const unsigned y = kept[0];
    if (__syncthreads_and(i >= n || kept[1] == seal(__float_as_uint(u), y, i))) {
        if (i < n) out[i] = __uint_as_float(y);
        return;
    }
    float a = u;   // some 40 us of dependent work that the honest answer is taken to need
    for (int r = 0; r < 20000; ++r) a = fmaf(a, 0.999f, 1e-3f);
    const float z = fmaxf(u, 0.f) + 1 + (a > 1e30f ? 1.f : 0.f);
    if (i < n) out[i] = z;
    kept[0] = __float_as_uint(z);
    kept[1] = seal(__float_as_uint(u), __float_as_uint(z), i);
}
