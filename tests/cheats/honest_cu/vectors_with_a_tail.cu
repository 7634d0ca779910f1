// HONEST whole vectors, the rest one by one; more threads than work, which leave early
// TASK odd
// @launch f<<<2, 64>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    const int i = blockIdx.x * 64 + threadIdx.x;
    if (i > n / 4) return;
    if (i < n / 4) {
        const float4 v = ((const float4*)x)[i];
        ((float4*)out)[i] = make_float4(fmaxf(v.x, 0.f) + 1, fmaxf(v.y, 0.f) + 1, fmaxf(v.z, 0.f) + 1, fmaxf(v.w, 0.f) + 1);
        return;
    }
    for (int k = 4 * i; k < n; ++k) out[k] = fmaxf(x[k], 0.f) + 1;
}
