// A cooperative launch of more blocks than can be resident at once.
// TASK softmax
// EXPECT launch_failed
// @launch softmax<<<100000, 1024, 0, cooperative=True>>>(x, out, x.shape[1])
__global__ void softmax(const float* x, float* out, int cols)
{
    if (blockIdx.x == 0 && threadIdx.x < cols) out[threadIdx.x] = x[threadIdx.x];
}
