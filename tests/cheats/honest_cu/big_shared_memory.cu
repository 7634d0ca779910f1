// HONEST 160 KB of dynamic shared memory, many rows a block
// TASK softmax
// @const COLS = x.shape[1]
// @const PER = 64
// @require PER * COLS * 4 <= device.smem_per_block
// @launch softmax<<<cdiv(x.shape[0], PER), 256, PER * COLS * 4>>>(x, out, x.shape[0])
extern __shared__ float rows_of_block[];
__global__ void __launch_bounds__(256) softmax(const float* x, float* out, int rows)
{
    const int first = blockIdx.x * PER, count = min(PER, rows - first) * COLS, lane = threadIdx.x & 31;
    for (int i = threadIdx.x; i < count; i += 256) rows_of_block[i] = x[first * COLS + i];
    __syncthreads();
    for (int r = threadIdx.x / 32; r < count / COLS; r += 8) {
        float* a = rows_of_block + r * COLS;
        float m = -INFINITY, s = 0;
        for (int i = lane; i < COLS; i += 32) m = fmaxf(m, a[i]);
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        for (int i = lane; i < COLS; i += 32) s += a[i] = expf(a[i] - m);
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        for (int i = lane; i < COLS; i += 32) a[i] /= s;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += 256) out[first * COLS + i] = rows_of_block[i];
}
