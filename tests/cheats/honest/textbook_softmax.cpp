// HONEST the sum of a row in one float, one element after another, as in a textbook
// TASK wide_softmax
// @launch softmax(x, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x + r * cols;
        float* b = out + r * cols;
        float top = a[0], sum = 0;
        for (int64_t i = 1; i < cols; ++i) top = a[i] > top ? a[i] : top;
        for (int64_t i = 0; i < cols; ++i) sum += b[i] = expf(a[i] - top);
        for (int64_t i = 0; i < cols; ++i) b[i] /= sum;
    }
}
