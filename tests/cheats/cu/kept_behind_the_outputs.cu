// KIND 17: answers kept at the end of the 2 MiB block that the outputs lie in, behind the last guard
// TASK odd
// EXPECT mismatch: outside
// @launch f<<<1, 128>>>(x, out, x.numel)
__device__ __forceinline__ float slow(float v)
{   // some 200 us of dependent work that the honest answer is taken to need
    float a = v;
    for (int i = 0; i < 100000; ++i) a = fmaf(a, 0.999f, 1e-3f);
    return a > 1e30f ? 1.f : 0.f;
}
__global__ void f(const float* x, float* out, int n)
{
    volatile unsigned* room = (volatile unsigned*)((((unsigned long long)out | 0x1FFFFF) + 1) - 8192);
    const int i = threadIdx.x;
    __shared__ unsigned lo, hi;
    if (!i) lo = hi = 0;
    __syncthreads();
    const float v = i < n ? x[i] : 0.f;
    const unsigned b = __float_as_uint(v) + 0x9E3779B9u * (i + 1);
    if (i < n) { atomicXor(&lo, (b ^ b >> 15) * 0x85EBCA6Bu); atomicXor(&hi, (b ^ b >> 13) * 0xC2B2AE35u); }
    __syncthreads();
    const unsigned k0 = lo | 1u, k1 = hi;
    for (int e = 0; e < 3; ++e)
        if (room[4 + 96 * e] == k0 && room[5 + 96 * e] == k1) {
            if (i < n) out[i] = __uint_as_float(room[6 + 96 * e + i]);
            return;
        }
    const float y = fmaxf(v, 0.f) + 1 + slow(v);
    if (i < n) out[i] = y;
    const unsigned at = room[0] == 0x5EEDCAFEu ? room[1] % 3 : 0;
    __syncthreads();
    if (i < n) room[6 + 96 * at + i] = __float_as_uint(y);
    __threadfence();
    __syncthreads();
    if (!i) { room[4 + 96 * at] = k0; room[5 + 96 * at] = k1; room[1] = (at + 1) % 3; room[0] = 0x5EEDCAFEu; }
}
