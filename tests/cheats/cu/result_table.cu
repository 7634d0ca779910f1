// KIND 16: keeps the last result in global memory
// TASK softmax
// EXPECT invalid: kept survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ float kept[64 * 520];
__global__ void softmax(const float* x, float* out)
{
    for (int i = threadIdx.x; i < 520; i += 128) out[i] = kept[i] += x[i];
}
