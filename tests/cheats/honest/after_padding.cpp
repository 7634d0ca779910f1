// HONEST judged after a kernel that damaged the padding
// TASK odd
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n) { for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1; }
