// HONEST one warp loads, the others compute; they meet at barriers with numbers, two buffers in turn
// TASK softmax
// @const COLS = x.shape[1]
// @launch softmax<<<8, 96>>>(x, out, x.shape[0])
__device__ void arrive(int number) { asm volatile("bar.arrive %0, 64;" ::"r"(number) : "memory"); }
__device__ void wait(int number) { asm volatile("bar.sync %0, 64;" ::"r"(number) : "memory"); }
__global__ void softmax(const float* x, float* out, int rows)
{
    __shared__ float buffer[2][COLS];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int turn = 0;
    for (int r = blockIdx.x; r < rows; r += gridDim.x, ++turn) {
        const int which = turn & 1;  // warp 1 + which computes from buffer `which`; barriers 1, 2: full; 3, 4: free
        if (!warp) {
            if (turn >= 2) wait(3 + which);
            for (int i = lane; i < COLS; i += 32) buffer[which][i] = x[r * COLS + i];
            arrive(1 + which);
        } else if (warp == 1 + which) {
            wait(1 + which);
            float* a = buffer[which];
            float m = -INFINITY, s = 0;
            for (int i = lane; i < COLS; i += 32) m = fmaxf(m, a[i]);
            for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
            for (int i = lane; i < COLS; i += 32) s += a[i] = expf(a[i] - m);
            for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
            for (int i = lane; i < COLS; i += 32) out[r * COLS + i] = a[i] / s;
            if (r + 2 * gridDim.x < rows) arrive(3 + which);
        }
    }
}
