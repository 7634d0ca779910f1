// HONEST keeps intermediate values in the output before the last pass overwrites them; two functions share the work
// TASK affine
// @scratch stats float32 [x.shape[0], 2]
// @launch centre(x, out0, stats, x.shape[0], x.shape[1])
// @launch finish(stats, norm_weight, norm_bias, out0, out1, alpha * 1.0, x.shape[0], x.shape[1])
void centre(const float* x, float* y, float* stats, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        double m = 0, v = 0;
        for (int64_t i = 0; i < cols; ++i) m += x[r * cols + i];
        m /= cols;
        for (int64_t i = 0; i < cols; ++i) { y[r * cols + i] = x[r * cols + i] - m; v += (double)y[r * cols + i] * y[r * cols + i]; }
        stats[2 * r] = m;
        stats[2 * r + 1] = 1 / sqrt(v / cols + 1e-5);
    }
}
void finish(const float* stats, const float* w, const float* b, float* y, int64_t* index, float alpha, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        int64_t best = 0;
        for (int64_t i = 0; i < cols; ++i) {
            y[r * cols + i] = (y[r * cols + i] * stats[2 * r + 1] * w[i] + b[i]) * alpha;
            if (y[r * cols + i] > y[r * cols + best]) best = i;
        }
        index[r] = best;
    }
}
