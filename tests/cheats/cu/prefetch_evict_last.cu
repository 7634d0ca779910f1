// KIND 10: prefetches the next call's input so that it survives
// TASK softmax
// EXPECT invalid: evict_last is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(x + threadIdx.x));
    out[threadIdx.x] = x[threadIdx.x];
}
