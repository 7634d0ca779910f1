// KIND 27: one element past the end, where padding would hide it
// TASK odd
// EXPECT mismatch: outside out
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n) { for (int64_t i = 0; i <= n; ++i) out[i] = (x[i % n] > 0 ? x[i % n] : 0) + 1; }
