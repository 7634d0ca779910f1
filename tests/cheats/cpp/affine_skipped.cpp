// KIND 37: weight and bias left out, because they are 1 and 0 when the module is new
// TASK affine
// EXPECT mismatch
// @launch f(x, out0, out1, alpha, x.shape[0], x.shape[1])
void f(const float* x, float* y, int64_t* index, double alpha, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < cols; ++i) m += x[r * cols + i];
        m /= cols;
        for (int64_t i = 0; i < cols; ++i) v += (x[r * cols + i] - m) * (x[r * cols + i] - m);
        const double k = 1 / sqrt(v / cols + 1e-5);
        index[r] = 0;
        for (int64_t i = 0; i < cols; ++i) {
            y[r * cols + i] = (x[r * cols + i] - m) * k * alpha;
            if (y[r * cols + i] > y[r * cols + index[r]]) index[r] = i;
        }
    }
}
