// KIND 29: the mean of the output, folded into a constant
// TASK softmax
// EXPECT mismatch
// @launch f<<<cdiv(out.numel, 256), 256>>>(out, out.numel)
__global__ void f(float* out, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) out[i] = 1.0f / 520; }
