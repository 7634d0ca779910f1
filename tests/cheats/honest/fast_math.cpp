// HONEST compiler's fast math and its vector exponential, within the error budget
// TASK softmax
// @flags fast_math unroll_loops
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        float m = x[0], s = 0;
        for (int64_t i = 0; i < cols; ++i) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < cols; ++i) s += out[i] = expf(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] /= s;
    }
}
