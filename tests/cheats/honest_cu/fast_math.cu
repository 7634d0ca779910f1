// HONEST the compiler's fast math, within the error budget
// TASK softmax
// @flags use_fast_math
// @launch softmax<<<x.shape[0], 32>>>(x, out, x.shape[1])
__global__ void softmax(const float* x, float* out, int cols)
{
    const float* a = x + blockIdx.x * cols;
    float m = -INFINITY, s = 0;
    for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, a[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    for (int i = threadIdx.x; i < cols; i += 32) s += expf(a[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = threadIdx.x; i < cols; i += 32) out[blockIdx.x * cols + i] = expf(a[i] - m) / s;
}
