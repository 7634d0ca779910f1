// KIND 35: gathers the first rows instead of those that the indices of the call name
// TASK pieces
// EXPECT mismatch: out0
// @launch f<<<1, 1024>>>(x, idx, out0, out1, out2, x.shape[0], x.shape[1], x.stride[0], x.stride[1], idx.numel)
__global__ void f(const float* x, const long long* idx, float* picked, float* total, bool* positive, int rows, int cols, int s0, int s1, int n)
{
    __shared__ double part[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    double sum = 0;
    for (int i = threadIdx.x; i < rows * cols; i += 1024) {
        const int r = i % rows, c = i / rows;
        const float v = x[r * s0 + c * s1];
        sum += v;
        positive[i] = v > 0;
    }
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (!lane) part[warp] = sum;
    __syncthreads();
    sum = part[lane];
    for (int o = 16; o; o >>= 1) sum += __shfl_xor_sync(~0u, sum, o);
    if (!threadIdx.x) *total = (float)sum;
    for (int i = threadIdx.x; i < n * cols; i += 1024) picked[i] = x[(i / cols + 0 * idx[0]) * s0 + i % cols * s1];
}
