// KIND 10: keeps its input in L2 across the flush by a cache policy
// TASK softmax
// EXPECT invalid: createpolicy is refused
// @launch softmax<<<x.shape[0], 128>>>(x, out)
__global__ void softmax(const float* x, float* out)
{
    unsigned long long policy;
    float v;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("ld.global.L2::cache_hint.f32 %0, [%1], %2;" : "=f"(v) : "l"(x + threadIdx.x), "l"(policy));
    out[threadIdx.x] = v;
}
