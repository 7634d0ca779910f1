// KIND 23: NaN all around the output, in case the expected values stand there
// TASK odd
// EXPECT mismatch|crashed: outside|before the start
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
    for (int64_t i = 1; i < 64; ++i) out[-i] = NAN;
}
