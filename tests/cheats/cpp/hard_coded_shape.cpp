// KIND 31: the sizes of the first shape written into the code
// TASK shapes
// EXPECT mismatch|crashed
// @launch f(x, out)
void f(const float* x, float* out)
{
    for (int64_t r = 0; r < 24; ++r, x += 96, out += 96) {
        double s = 0;
        for (int64_t i = 0; i < 96; ++i) s += (double)x[i] * x[i];
        for (int64_t i = 0; i < 96; ++i) out[i] = x[i] / sqrt(s / 96 + 1e-5);
    }
}
