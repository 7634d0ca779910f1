// KIND 40: a function that looks like the work, and an output that is filled
// TASK odd
// EXPECT mismatch
// @scratch unused float32 [x.shape[0], x.shape[1]]
// @launch relu(x, unused, x.numel)
// @fill out 1.4
void relu(const float* x, float* out, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1; }
