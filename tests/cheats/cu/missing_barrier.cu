// KIND 27: partial sums are read before the other warps have written them
// TASK softmax
// EXPECT mismatch
// @launch softmax<<<x.shape[0], 256>>>(x, out, x.shape[1])
__global__ void softmax(const float* x, float* out, int cols)
{
    __shared__ float part[8];
    const float* a = x + blockIdx.x * cols;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float s = 0;
    if (threadIdx.x < 8) part[threadIdx.x] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += 256) s += expf(a[i]);
    for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(~0u, s, o);
    if (warp) __nanosleep(20000);
    if (!lane) part[warp] = s;
    __syncwarp();
    s = 0;
    for (int k = 0; k < 8; ++k) s += *(volatile float*)&part[k];
    for (int i = threadIdx.x; i < cols; i += 256) out[blockIdx.x * cols + i] = expf(a[i]) / s;
}
