// KIND 7: answers with what the call before had to compute, and puts its own work off
// TASK odd
// EXPECT mismatch
// @scratch later float32 [x.shape[0], x.shape[1]]
// @launch f<<<1, 128>>>(x, later, out, x.numel)
__global__ void f(const float* x, float* later, float* out, int n)
{
    if (threadIdx.x >= n) return;
    out[threadIdx.x] = fmaxf(later[threadIdx.x], 0.f) + 1;
    later[threadIdx.x] = x[threadIdx.x];
}
