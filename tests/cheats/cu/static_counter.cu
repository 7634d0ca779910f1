// KIND 8: counts in a function-local static
// TASK softmax
// EXPECT invalid: calls survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    static int calls = 0;
    if (++calls < 10) out[threadIdx.x] = x[threadIdx.x];
}
