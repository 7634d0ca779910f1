// KIND 6: one call does the work of the next one too, in the next slot's buffers
// TASK odd
// EXPECT mismatch|crashed: outside|past the end|no buffer
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    const int64_t next = 2 * 4096 / 4;
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
    for (int64_t i = 0; i < n; ++i) out[i + next] = (x[i + next] > 0 ? x[i + next] : 0) + 1;
}
