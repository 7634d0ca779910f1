// KIND 29: the sum of a row guessed from half of it
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        float m = x[0];
        for (int64_t i = 0; i < cols; ++i) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < cols; i += 2) s += 2 * expf(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] = expf(x[i] - m) / s;
    }
}
