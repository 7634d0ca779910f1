// KIND 30: columns beyond the last multiple of 32 are left out
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        double s = 0;
        float m = x[r * cols];
        for (int64_t i = 0; i < cols; ++i) m = x[r * cols + i] > m ? x[r * cols + i] : m;
        for (int64_t i = 0; i < cols; ++i) s += expf(x[r * cols + i] - m);
        for (int64_t i = 0; i < cols / 32 * 32; ++i) out[r * cols + i] = expf(x[r * cols + i] - m) / s;
    }
}
