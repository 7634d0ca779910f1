// KIND 32: does its work at the small shapes and skips the last rows at the large one
// TASK shapes
// EXPECT mismatch
// @launch f(x, out, x.shape[0] if x.shape[0] < 20 else x.shape[0] - 2, x.shape[1])
void f(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += (double)x[i] * x[i];
        for (int64_t i = 0; i < cols; ++i) out[i] = x[i] / sqrt(s / cols + 1e-5);
    }
}
