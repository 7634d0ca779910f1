// KIND 27: adds onto scratch that was never cleared, which is zero in fresh memory
// TASK softmax
// EXPECT mismatch
// @scratch total float32 [x.shape[0]]
// @launch softmax(x, total, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* total, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        float m = x[0];
        for (int64_t i = 0; i < cols; ++i) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < cols; ++i) total[r] += out[i] = expf(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] /= total[r];
    }
}
