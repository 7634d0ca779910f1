// KIND 43: counts in a variable that nothing names, behind a constant whose address is taken
// TASK softmax
// EXPECT invalid: anchor survives a launch and may only be read
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ const unsigned anchor[4] = {};
__device__ unsigned behind[64];
__global__ void softmax(const float* x, float* out)
{
    unsigned* room = const_cast<unsigned*>(anchor);
    asm volatile("" : "+l"(room));
    if (++room[16] < 10) out[threadIdx.x] = x[threadIdx.x];
}
