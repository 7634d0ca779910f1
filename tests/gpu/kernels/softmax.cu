// Row softmax, a block a row, values kept in registers.
// @tune BLOCK = 256 in 128 256 512
// @const COLS = x.shape[1]
// @launch softmax<<<x.shape[0], BLOCK>>>(x, out)
__global__ void softmax(const float* __restrict__ x, float* __restrict__ out)
{
    __shared__ float part[32];
    const float* a = x + (size_t)blockIdx.x * COLS;
    float* b = out + (size_t)blockIdx.x * COLS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float m = -INFINITY;
    for (int i = threadIdx.x; i < COLS; i += BLOCK) m = fmaxf(m, a[i]);
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    if (!lane) part[warp] = m;
    __syncthreads();
    m = lane < BLOCK / 32 ? part[lane] : -INFINITY;
    for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
    __syncthreads();
    float s = 0;
    for (int i = threadIdx.x; i < COLS; i += BLOCK) s += expf(a[i] - m);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (!lane) part[warp] = s;
    __syncthreads();
    s = lane < BLOCK / 32 ? part[lane] : 0;
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    for (int i = threadIdx.x; i < COLS; i += BLOCK) b[i] = expf(a[i] - m) / s;
}
// TASK softmax
// EXPECT verified
