// KIND 30: only the first output is right
// TASK affine
// EXPECT mismatch: out1
// @launch f(x, norm_weight, norm_bias, out0, out1, alpha, x.shape[0], x.shape[1])
void f(const float* x, const float* w, const float* b, float* y, int64_t* index, double alpha, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < cols; ++i) m += x[r * cols + i];
        m /= cols;
        for (int64_t i = 0; i < cols; ++i) v += (x[r * cols + i] - m) * (x[r * cols + i] - m);
        const double k = 1 / sqrt(v / cols + 1e-5);
        index[r] = 5;
        for (int64_t i = 0; i < cols; ++i) y[r * cols + i] = ((x[r * cols + i] - m) * k * w[i] + b[i]) * alpha;
    }
}
