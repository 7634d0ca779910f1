// KIND 24: casts const away and leaves zeros in its input
// TASK odd
// EXPECT cheating: writes into x
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = fmaxf(x[threadIdx.x], 0.f) + 1;
    const_cast<float*>(x)[threadIdx.x] = 0;
}
