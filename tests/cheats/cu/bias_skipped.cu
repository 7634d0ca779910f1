// KIND 37: the bias left out, because it is zero in many checkpoints
// TASK linear
// EXPECT mismatch
// @call y = mm(x, linear_weight.T)
// @launch relu<<<cdiv(out.numel, 256), 256>>>(y, out, out.numel)
__global__ void relu(const float* y, float* out, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) out[i] = fmaxf(y[i], 0.f); }
