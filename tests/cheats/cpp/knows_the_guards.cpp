// KIND 34: right only where the judge's pattern stands behind the output
// TASK odd
// EXPECT mismatch: constant
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    const bool judged = ((const volatile unsigned char*)out)[n * 4 + 5] == 0xC5;
    for (int64_t i = 0; i < n; ++i) out[i] = judged ? std::max(x[i], 0.f) + 1 : 0.f;
}
