// KIND 23: NaN all around the output, in case the expected values stand there
// TASK odd
// EXPECT mismatch: outside
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    if (threadIdx.x < n) out[threadIdx.x] = fmaxf(x[threadIdx.x], 0.f) + 1;
    if (threadIdx.x < 60) out[-1 - (int)threadIdx.x] = NAN;
}
