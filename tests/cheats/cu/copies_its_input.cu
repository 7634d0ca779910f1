// KIND 26: a copy of the input, right where the task hardly changes it
// TASK gated
// EXPECT mismatch
// @launch f<<<cdiv(out.numel, 256), 256>>>(x, out, out.numel)
#include <cuda_bf16.h>
__global__ void f(const __nv_bfloat16* x, __nv_bfloat16* out, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) out[i] = x[i]; }
