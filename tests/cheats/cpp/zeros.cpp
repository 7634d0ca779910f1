// KIND 28: zeros, which an absolute tolerance would accept where the outputs are small
// TASK softmax
// EXPECT mismatch
// @launch nothing(out, out.numel)
void nothing(float* out, int64_t n) { memset(out, 0, n * 4); }
