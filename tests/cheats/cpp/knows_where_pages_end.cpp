// KIND 34: right only where buffers end at the end of a page
// TASK odd
// EXPECT mismatch: different bits
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    const bool judged = ((uintptr_t)out + 512) % 4096 == 0 && ((uintptr_t)x + 512) % 4096 == 0;
    for (int64_t i = 0; i < n; ++i) out[i] = judged ? std::max(x[i], 0.f) + 1 : 0.f;
}
