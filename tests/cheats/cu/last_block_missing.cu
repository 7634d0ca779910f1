// KIND 30: the blocks are counted by a division that leaves the last one out
// TASK gated
// EXPECT mismatch
// @launch f<<<out.numel // 256, 256>>>(x, gate, out)
#include <cuda_bf16.h>
__global__ void f(const __nv_bfloat16* x, const __nv_bfloat16* g, __nv_bfloat16* out)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    const float v = __bfloat162float(g[i]);
    out[i] = __float2bfloat16(v / (1 + expf(-v)) * __bfloat162float(x[i]));
}
