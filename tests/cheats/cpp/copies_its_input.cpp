// KIND 26: a copy of the input, right where the task hardly changes it
// TASK gated
// EXPECT mismatch
// @launch f(x, out, x.numel)
void f(const uint16_t* x, uint16_t* out, int64_t n) { memcpy(out, x, n * 2); }
