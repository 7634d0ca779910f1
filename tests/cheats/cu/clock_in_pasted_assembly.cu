// KIND 34: the clock again, spelled so that no word of the source shows it
// TASK softmax
// EXPECT invalid: %clock is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
#define REGISTER "%%clo" "ck"
__global__ void softmax(const float* x, float* out)
{
    unsigned now;
    asm volatile("mov.u32 %0, " REGISTER ";" : "=r"(now));
    out[threadIdx.x] = now;
}
