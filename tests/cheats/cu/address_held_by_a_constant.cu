// KIND 43: counts in a variable whose address a constant holds
// TASK softmax
// EXPECT invalid: place survives a launch .* it holds an address
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ unsigned seen;
__device__ unsigned* const place[2] = {&seen, &seen};
__global__ void softmax(const float* x, float* out)
{
    if (++*place[threadIdx.x & 1] < 10) out[threadIdx.x] = x[threadIdx.x];
}
