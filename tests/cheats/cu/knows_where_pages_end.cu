// KIND 34: right only where buffers end at the end of a page
// TASK odd
// EXPECT mismatch: different bits
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    const bool judged = (((unsigned long long)out + 512) & 4095) == 0 && (((unsigned long long)x + 512) & 4095) == 0;
    if (threadIdx.x < n) out[threadIdx.x] = judged ? fmaxf(x[threadIdx.x], 0.f) + 1 : 0.f;
}
