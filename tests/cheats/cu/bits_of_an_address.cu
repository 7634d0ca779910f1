// KIND 43: learns a variable's address bit by bit, by a comparison
// TASK softmax
// EXPECT invalid: seen survives a launch .* `setp
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__device__ unsigned seen;
__global__ void softmax(const float* x, float* out)
{
    unsigned long long at = 0;
    for (unsigned long long bit = 1ull << 62; bit; bit >>= 1)
        if ((unsigned long long)&seen >= at + bit) at += bit;
    asm volatile("" : "+l"(at));
    if (++*(unsigned*)at < 10) out[threadIdx.x] = x[threadIdx.x];
}
