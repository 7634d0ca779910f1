// HONEST two 16-bit values at a time, float32 between
// TASK gated
// @require out.numel % 2 == 0
// @launch f<<<cdiv(out.numel // 2, 128), 128>>>(x, gate, out, out.numel // 2)
#include <cuda_bf16.h>
__global__ void f(const __nv_bfloat162* x, const __nv_bfloat162* g, __nv_bfloat162* out, int n)
{
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i >= n) return;
    const float2 v = __bfloat1622float2(g[i]), a = __bfloat1622float2(x[i]);
    out[i] = __floats2bfloat162_rn(v.x / (1 + expf(-v.x)) * a.x, v.y / (1 + expf(-v.y)) * a.y);
}
