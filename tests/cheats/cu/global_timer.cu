// KIND 34: the nanosecond timer of the GPU
// TASK softmax
// EXPECT invalid: no clock
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    out[threadIdx.x] = now;
}
