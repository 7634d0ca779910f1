// HONEST computes what the reference makes on the host
// TASK positions
// @launch f<<<cdiv(x.numel, 256), 256>>>(x, out, x.numel, x.shape[1])
__global__ void f(const float* x, float* out, int n, int cols)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) out[i] = x[i] + sinf(i % cols * 0.01f);
}
