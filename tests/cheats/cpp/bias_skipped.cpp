// KIND 37: the bias left out, because it is zero in many checkpoints
// TASK linear
// EXPECT mismatch
// @call out = linear(x, linear_weight)
// @launch relu(out, out.numel)
void relu(float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = y[i] > 0 ? y[i] : 0; }
