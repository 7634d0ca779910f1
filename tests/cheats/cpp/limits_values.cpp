// KIND 33: cuts what is above 20000, where random values hardly ever are
// TASK odd
// EXPECT mismatch: 'huge' inputs
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) out[i] = std::min(std::max(x[i], 0.f), 20000.f) + 1;
}
