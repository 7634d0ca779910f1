// HONEST a cooperative launch with barriers over the whole grid; sums of rows in scratch between them
// TASK softmax
// @scratch total float32 [x.shape[0]]
// @launch softmax<<<16, 128, 0, cooperative=True>>>(x, total, out, x.shape[0], x.shape[1])
#include <cooperative_groups.h>
__global__ void softmax(const float* x, float* total, float* out, int rows, int cols)
{
    const int warp = (blockIdx.x * 128 + threadIdx.x) / 32, lane = threadIdx.x & 31;
    for (int r = warp; r < rows; r += gridDim.x * 4) {
        float m = -INFINITY, s = 0;
        for (int i = lane; i < cols; i += 32) m = fmaxf(m, x[r * cols + i]);
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        for (int i = lane; i < cols; i += 32) s += out[r * cols + i] = expf(x[r * cols + i] - m);
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        if (!lane) total[r] = s;
    }
    cooperative_groups::this_grid().sync();
    for (int i = blockIdx.x * 128 + threadIdx.x; i < rows * cols; i += gridDim.x * 128) out[i] /= total[i / cols];
}
