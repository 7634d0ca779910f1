// HONEST the second launch may begin before the first has ended, and waits for it where it must
// TASK softmax
// @scratch peak float32 [x.shape[0]]
// @launch peaks<<<x.shape[0], 32>>>(x, peak, x.shape[1])
// @launch divide<<<x.shape[0], 32, 0, pdl=True>>>(x, peak, out, x.shape[1])
__global__ void peaks(const float* x, float* peak, int cols)
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    float m = -INFINITY;
    for (int i = threadIdx.x; i < cols; i += 32) m = fmaxf(m, x[blockIdx.x * cols + i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (!threadIdx.x) peak[blockIdx.x] = m;
}
__global__ void divide(const float* x, const float* peak, float* out, int cols)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
    const float m = *(const volatile float*)(peak + blockIdx.x);
    float s = 0;
    for (int i = threadIdx.x; i < cols; i += 32) s += expf(x[blockIdx.x * cols + i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = threadIdx.x; i < cols; i += 32) out[blockIdx.x * cols + i] = expf(x[blockIdx.x * cols + i] - m) / s;
}
