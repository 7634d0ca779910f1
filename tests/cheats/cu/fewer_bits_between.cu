// KIND 36: every intermediate value cut to five bits of mantissa, where one rounding to seven at the end is allowed
// TASK gated
// EXPECT mismatch: units|rms
// @launch f<<<cdiv(out.numel, 256), 256>>>(x, gate, out, out.numel)
#include <cuda_bf16.h>
__device__ float cut(float v) { return __uint_as_float(__float_as_uint(v) & 0xFFFC0000u); }
__global__ void f(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* out, int n)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= n) return;
    const float v = __bfloat162float(g[i]);
    out[i] = __float2bfloat16(cut(cut(v / cut(1 + cut(expf(-v)))) * __bfloat162float(x[i])));
}
