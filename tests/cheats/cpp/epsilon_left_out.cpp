// KIND 33: right for inputs of ordinary size, wrong where they are so small that the epsilon counts
// TASK shapes
// EXPECT mismatch: small|mixture
// @launch f(x, out, x.shape[0], x.shape[1])
void f(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += (double)x[i] * x[i];
        s /= cols;
        for (int64_t i = 0; i < cols; ++i) out[i] = s > 0.1 ? x[i] / sqrt(s + 1e-5) : x[i] / sqrt(s + 1e-12);
    }
}
