// KIND 15: a row that begins like the row before it is taken for the same row
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        if (r && x[0] == x[-cols]) { memcpy(out, out - cols, cols * 4); continue; }
        double s = 0;
        float m = x[0];
        for (int64_t i = 0; i < cols; ++i) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < cols; ++i) s += out[i] = expf(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] /= s;
    }
}
