// KIND 8: counts calls in scratch, as if it began at zero and were kept
// TASK odd
// EXPECT mismatch
// @scratch calls uint8 [4]
// @launch f<<<1, 128>>>(x, calls, out, x.numel)
__global__ void f(const float* x, unsigned char* calls, float* out, int n)
{
    const bool early = calls[0] < 10;
    __syncthreads();
    if (!threadIdx.x) ++calls[0];
    if (early && threadIdx.x < n) out[threadIdx.x] = fmaxf(x[threadIdx.x], 0.f) + 1;
}
