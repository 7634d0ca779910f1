// KIND 33: right for inputs of the size that a check usually draws, infinite for large ones
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += expf(x[r * cols + i]);
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = expf(x[r * cols + i]) / s;
    }
}
