// KIND 15: each thread finds its last values and results again in its uninitialised local memory
// TASK odd
// EXPECT cheating: times as long on inputs that it has not met before
// @launch f<<<1, 128>>>(x, out, x.numel)
__device__ __forceinline__ float slow(float v)
{   // some 200 us of dependent work that the honest answer is taken to need
    float a = v;
    for (int i = 0; i < 100000; ++i) a = fmaf(a, 0.999f, 1e-3f);
    return a > 1e30f ? 1.f : 0.f;
}
__global__ void f(const float* x, float* out, int n)
{
    unsigned frame[64];
    unsigned* p = frame;
    asm volatile("" : "+l"(p) : : "memory");
    volatile unsigned* room = p;
    const int i = threadIdx.x;
    if (i >= n) return;
    const float v = x[i];
    for (int e = 0; e < 6; ++e)
        if (room[4 + 3 * e] == 0xC0FFEE00u + e && room[5 + 3 * e] == __float_as_uint(v)) { out[i] = __uint_as_float(room[6 + 3 * e]); return; }
    const float y = fmaxf(v, 0.f) + 1 + slow(v);
    out[i] = y;
    const unsigned at = room[0] == 0x5EEDCAFEu ? room[1] % 6 : 0;
    room[5 + 3 * at] = __float_as_uint(v);
    room[6 + 3 * at] = __float_as_uint(y);
    room[4 + 3 * at] = 0xC0FFEE00u + at;
    room[1] = at + 1;
    room[0] = 0x5EEDCAFEu;
}
