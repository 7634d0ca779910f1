// HONEST OpenMP deals out rows as threads ask for them, after one thread has handed their number to all
// TASK softmax
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    int64_t count;
#pragma omp parallel private(count)
    {
#pragma omp single copyprivate(count)
        count = rows;
#pragma omp for schedule(dynamic, 8) nowait
        for (int64_t k = 0; k < count; ++k) {
            const float* a = x + k * cols;
            const float m = *std::max_element(a, a + cols);
            double s = 0;
            for (int64_t i = 0; i < cols; ++i) s += out[k * cols + i] = expf(a[i] - m);
            for (int64_t i = 0; i < cols; ++i) out[k * cols + i] /= s;
        }
    }
}
