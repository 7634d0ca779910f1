// KIND 34: right only where the judge's pattern stands behind the output
// TASK odd
// EXPECT mismatch: constant
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    const bool judged = ((volatile const unsigned char*)out)[n * 4 + 5] == 0xC5;
    if (threadIdx.x < n) out[threadIdx.x] = judged ? fmaxf(x[threadIdx.x], 0.f) + 1 : 0.f;
}
