// More blocks than any GPU gets through.
// TASK softmax
// EXPECT timeout
// @launch softmax<<<(2147483647, 65535), 64>>>(x, out, x.shape[1])
__global__ void softmax(const float* x, float* out, int cols)
{
    if (threadIdx.x < cols) atomicAdd(&out[threadIdx.x], x[threadIdx.x]);
}
