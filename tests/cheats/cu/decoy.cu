// KIND 40: the library's product without the rest, and a kernel that looks like the rest
// TASK linear
// EXPECT mismatch
// @call out = linear(x, linear_weight, linear_bias)
// @scratch unused float32 [out.shape[0], out.shape[1]]
// @launch relu<<<cdiv(out.numel, 256), 256>>>(out, unused, out.numel)
__global__ void relu(const float* y, float* out, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) out[i] = fmaxf(y[i], 0.f); }
