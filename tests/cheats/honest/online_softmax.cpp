// HONEST maximum and sum in one pass, rescaled whenever the maximum grows; critical section, barrier
// TASK softmax
// @scratch done int32 [1] zero
// @launch softmax(x, out, done, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int32_t* done, int64_t rows, int64_t cols)
{
#pragma omp parallel
    {
        for (;;) {
            int64_t r;
#pragma omp critical
            r = (*done)++;
            if (r >= rows) break;
            const float* a = x + r * cols;
            float m = -INFINITY, s = 0;
            for (int64_t i = 0; i < cols; ++i) {
                const float next = fmaxf(m, a[i]);
                s = s * expf(m - next) + expf(a[i] - next);
                m = next;
            }
            for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = expf(a[i] - m) / s;
        }
#pragma omp barrier
    }
}
