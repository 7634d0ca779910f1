// Atomics in changing order, without saying so.
// @fill out 0
// @launch f<<<x.shape[0], 256>>>(x, out, x.shape[1])
__global__ void f(const float* x, float* out, int n)
{
    for (int i = threadIdx.x; i < n; i += 256) atomicAdd(out + (i % 7), x[blockIdx.x * n + i] * 1e-3f);
}
// TASK softmax
// EXPECT mismatch
