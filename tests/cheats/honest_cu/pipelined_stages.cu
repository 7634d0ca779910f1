// HONEST asynchronous copies in stages, their number a tunable
// TASK softmax
// @tune STAGES = 3 in 2 3 4
// @const COLS = x.shape[1]
// @require COLS % 4 == 0
// @launch softmax<<<16, 32>>>(x, out, x.shape[0])
#include <cuda_pipeline.h>
__global__ void softmax(const float* x, float* out, int rows)
{
    __shared__ alignas(16) float row[STAGES][COLS];
    const auto fetch = [&](int r, int stage) {
        if (r < rows)
            for (int i = 4 * threadIdx.x; i < COLS; i += 128) __pipeline_memcpy_async(&row[stage][i], x + r * COLS + i, 16);
        __pipeline_commit();
    };
    for (int k = 0; k < STAGES - 1; ++k) fetch(blockIdx.x + k * gridDim.x, k);
    for (int r = blockIdx.x, turn = 0; r < rows; r += gridDim.x, ++turn) {
        fetch(r + (STAGES - 1) * gridDim.x, (turn + STAGES - 1) % STAGES);
        __pipeline_wait_prior(STAGES - 1);
        __syncwarp();
        float* a = row[turn % STAGES];
        float m = -INFINITY, s = 0;
        for (int i = threadIdx.x; i < COLS; i += 32) m = fmaxf(m, a[i]);
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        for (int i = threadIdx.x; i < COLS; i += 32) s += a[i] = expf(a[i] - m);
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        for (int i = threadIdx.x; i < COLS; i += 32) out[r * COLS + i] = a[i] / s;
        __syncwarp();
    }
}
