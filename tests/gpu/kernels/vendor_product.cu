// Library product, epilogue in place.
// @call out = linear(x, linear_weight, linear_bias)
// @launch relu<<<cdiv(out.numel, 256), 256>>>(out, out.numel)
__global__ void relu(float* y, int n) { int i = blockIdx.x * 256 + threadIdx.x; if (i < n) y[i] = fmaxf(y[i], 0.f); }
// TASK linear
// EXPECT verified
