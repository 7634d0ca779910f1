// KIND 4: reads a counter of the profiler in place of a clock
// TASK softmax
// EXPECT invalid: %pm0 is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned now;
    asm volatile("mov.u32 %0, %%pm0;" : "=r"(now));
    out[threadIdx.x] = x[threadIdx.x] + (now & 1);
}
