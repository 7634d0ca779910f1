// KIND 28: the same probability everywhere when the inputs are small
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        float m = x[0], low = x[0];
        for (int64_t i = 0; i < cols; ++i) { m = x[i] > m ? x[i] : m; low = x[i] < low ? x[i] : low; }
        for (int64_t i = 0; i < cols; ++i) s += out[i] = m - low < 0.01f ? 1.0f : expf(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] /= s;
    }
}
