// HONEST statistics in training mode: four outputs, one of them a single integer
// TASK running
// @launch f(x, norm_weight, norm_bias, norm_running_mean, norm_running_var, norm_num_batches_tracked, out,
// @+       out_norm_running_mean, out_norm_running_var, out_norm_num_batches_tracked, x.shape[0], x.shape[1])
void f(const float* x, const float* w, const float* b, const float* om, const float* ov, const int64_t* c, float* y, float* nm, float* nv, int64_t* nc, int64_t rows, int64_t cols)
{
    for (int64_t j = 0; j < cols; ++j) {
        double m = 0, v = 0;
        for (int64_t r = 0; r < rows; ++r) m += x[r * cols + j];
        m /= rows;
        for (int64_t r = 0; r < rows; ++r) v += (x[r * cols + j] - m) * (x[r * cols + j] - m);
        v /= rows;
        nm[j] = 0.9 * om[j] + 0.1 * m; nv[j] = 0.9 * ov[j] + 0.1 * v * rows / (rows - 1);
        for (int64_t r = 0; r < rows; ++r) y[r * cols + j] = (x[r * cols + j] - m) / sqrt(v + 1e-5) * w[j] + b[j];
    }
    *nc = *c + 1;
}
