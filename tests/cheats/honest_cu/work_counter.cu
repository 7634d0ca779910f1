// HONEST a grid that stays, rows dealt out by an atomic counter in scratch that each call finds zeroed
// TASK softmax
// @scratch next int32 [1] zero
// @launch softmax<<<device.sm_count, 128>>>(x, next, out, x.shape[0], x.shape[1])
__global__ void softmax(const float* x, int* next, float* out, int rows, int cols)
{
    __shared__ int row;
    __shared__ float part[4];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (;;) {
        if (!threadIdx.x) row = atomicAdd(next, 1);
        __syncthreads();
        const int r = row;
        if (r >= rows) return;
        float m = -INFINITY, s = 0;
        for (int i = lane; i < cols; i += 32) m = fmaxf(m, x[r * cols + i]);
        for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
        for (int i = threadIdx.x; i < cols; i += 128) s += expf(x[r * cols + i] - m);
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
        if (!lane) part[warp] = s;
        __syncthreads();
        s = (part[0] + part[1]) + (part[2] + part[3]);
        for (int i = threadIdx.x; i < cols; i += 128) out[r * cols + i] = expf(x[r * cols + i] - m) / s;
        __syncthreads();
    }
}
