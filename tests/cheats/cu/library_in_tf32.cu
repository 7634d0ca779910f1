// KIND 36: a product in TF32 under a strict contract
// TASK linear
// EXPECT mismatch
// @call out = linear(x, linear_weight, linear_bias, precision=tf32)
// @launch relu<<<cdiv(out.numel, 256), 256>>>(out, out.numel)
__global__ void relu(float* y, int n) { const int i = blockIdx.x * 256 + threadIdx.x; if (i < n) y[i] = fmaxf(y[i], 0.f); }
