// HONEST floating atomics in whatever order they come, said so; an output filled first
// TASK pieces
// @nondeterministic
// @fill out1 0
// @launch f<<<cdiv(x.numel, 256), 256>>>(x, out1, out2, x.shape[0], x.numel, x.stride[0], x.stride[1])
// @launch gather<<<idx.numel, 64>>>(x, idx, out0, x.shape[1], x.stride[0], x.stride[1])
__global__ void f(const float* x, float* total, bool* positive, int rows, int n, int s0, int s1)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float v = i < n ? x[i % rows * s0 + i / rows * s1] : 0;
    if (i < n) positive[i] = v > 0;
    float s = v;
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (!(threadIdx.x & 31)) atomicAdd(total, s);
}
__global__ void gather(const float* x, const long long* idx, float* picked, int cols, int s0, int s1)
{
    for (int c = threadIdx.x; c < cols; c += 64) picked[blockIdx.x * cols + c] = x[idx[blockIdx.x] * s0 + c * s1];
}
