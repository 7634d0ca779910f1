// KIND 10: the same policy as a number that is known by heart
// TASK softmax
// EXPECT invalid: cache_hint is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    float v;
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(x + threadIdx.x), "l"(0x14F0000000000000ull));
    out[threadIdx.x] = v;
}
