// KIND 30: the last rows get no block
// TASK softmax
// EXPECT mismatch
// @launch softmax<<<(x.shape[0] - 1) // 4, 128>>>(x, out, x.shape[0], x.shape[1])
__global__ void softmax(const float* x, float* out, int rows, int cols)
{
    const int r = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (r >= rows) return;
    const float* a = x + r * cols;
    float* b = out + r * cols;
    float m = -INFINITY, s = 0;
    for (int i = lane; i < cols; i += 32) m = fmaxf(m, a[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    for (int i = lane; i < cols; i += 32) s += expf(a[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = lane; i < cols; i += 32) b[i] = expf(a[i] - m) / s;
}
