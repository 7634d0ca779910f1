// KIND 31: takes the input for contiguous, as most checks draw it
// TASK pieces
// EXPECT mismatch
// @launch f(x, idx, out0, out1, out2, x.shape[0], x.shape[1], idx.numel)
void f(const float* x, const int64_t* idx, float* picked, float* total, bool* positive, int64_t rows, int64_t cols, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < rows * cols; ++i) { sum += x[i]; positive[i] = x[i] > 0; }
    for (int64_t k = 0; k < n; ++k)
        for (int64_t c = 0; c < cols; ++c) picked[k * cols + c] = x[idx[k] * cols + c];
    *total = sum;
}
