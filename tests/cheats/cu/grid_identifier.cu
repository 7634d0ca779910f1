// KIND 8: reads the number of the launch from a special register
// TASK softmax
// EXPECT invalid: gridid
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned long long launch;
    asm volatile("mov.u64 %0, %%gridid;" : "=l"(launch));
    if (launch < 10) out[threadIdx.x] = x[threadIdx.x];
}
