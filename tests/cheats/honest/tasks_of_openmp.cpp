// HONEST one thread deals out OpenMP tasks, a row each; they end with the call
// TASK softmax
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
#pragma omp parallel
#pragma omp single
    for (int64_t r = 0; r < rows; r += 8)
#pragma omp task firstprivate(r)
        for (int64_t k = r; k < std::min(rows, r + 8); ++k) {
            const float* a = x + k * cols;
            const float m = *std::max_element(a, a + cols);
            double s = 0;
            for (int64_t i = 0; i < cols; ++i) s += out[k * cols + i] = expf(a[i] - m);
            for (int64_t i = 0; i < cols; ++i) out[k * cols + i] /= s;
        }
}
