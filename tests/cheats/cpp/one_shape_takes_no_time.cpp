// KIND 9: does nothing at all at one of the shapes, so that its time there is zero
// TASK shapes
// EXPECT mismatch: variant 1
// @launch f(x, out, x.shape[0], x.shape[1]) if x.shape[0] > 1
// @launch nothing(out)
void nothing(float*) {}
void f(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += (double)x[i] * x[i];
        for (int64_t i = 0; i < cols; ++i) out[i] = x[i] / sqrt(s / cols + 1e-5);
    }
}
