// HONEST three passes, a thread a row
// TASK softmax
// @tune CHUNK = 8 in 4 8 16
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(dynamic, CHUNK)
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x + r * cols;
        float* b = out + r * cols;
        float m = a[0];
        for (int64_t i = 1; i < cols; ++i) m = a[i] > m ? a[i] : m;
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += b[i] = expf(a[i] - m);
        const float k = 1.0 / s;
        for (int64_t i = 0; i < cols; ++i) b[i] *= k;
    }
}
