// KIND 14: remembers which input it saw last and skips the work
// TASK softmax
// EXPECT invalid: last survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ const float* last;
__global__ void softmax(const float* x, float* out)
{
    if (last == x) return;
    out[threadIdx.x] = x[threadIdx.x];
    last = x;
}
