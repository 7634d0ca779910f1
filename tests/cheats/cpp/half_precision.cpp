// KIND 36: 16-bit arithmetic under an fp32 contract
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        float s = 0;
        float m = x[r * cols];
        for (int64_t i = 0; i < cols; ++i) m = x[r * cols + i] > m ? x[r * cols + i] : m;
        for (int64_t i = 0; i < cols; ++i) s += out[r * cols + i] = (float)(_Float16)expf((float)(_Float16)(x[r * cols + i] - m));
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = (float)(_Float16)(out[r * cols + i] / s);
    }
}
