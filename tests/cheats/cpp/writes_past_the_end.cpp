// KIND 27: one element past the end
// TASK softmax
// EXPECT mismatch|crashed: outside|past the end
// @launch softmax(x, out, x.numel)
void softmax(const float* x, float* out, int64_t n) { for (int64_t i = 0; i <= n; ++i) out[i] = x[0]; }
