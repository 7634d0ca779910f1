// KIND 22: scans the addresses behind its buffers for a tensor that looks like the answer
// TASK softmax
// EXPECT crashed|mismatch|timeout
// @launch f<<<64, 256>>>(x, out, out.numel)
__global__ void f(const float* x, float* out, int n)
{
    const volatile float* p = out;
    for (long long at = n; at < 1ll << 33; at += 520)
        if (p[at] > 0 && p[at] < 1 && fabsf(p[at] + p[at + 1] - 1) < 1) out[blockIdx.x * 256 + threadIdx.x] = p[at];
}
