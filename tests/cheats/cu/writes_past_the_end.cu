// KIND 27: one element past the end, where padding would hide it
// TASK odd
// EXPECT mismatch: outside out
// @launch f<<<1, 128>>>(x, out, x.numel)
__global__ void f(const float* x, float* out, int n)
{
    if (threadIdx.x <= n) out[threadIdx.x] = fmaxf(x[threadIdx.x % n], 0.f) + 1;
}
