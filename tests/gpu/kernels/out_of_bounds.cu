// Writes one row too many.
// @launch f<<<x.shape[0] + 1, 128>>>(x, out, x.shape[1])
__global__ void f(const float* x, float* out, int n)
{
    for (int i = threadIdx.x; i < n; i += 128) out[blockIdx.x * n + i] = x[0];
}
// TASK softmax
// EXPECT mismatch|crashed: outside|illegal
