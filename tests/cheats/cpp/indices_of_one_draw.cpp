// KIND 35: gathers rows by the indices of a draw it has seen instead of those it is given
// TASK pieces
// EXPECT mismatch: out0
// @launch f(x, out0, out1, out2, x.shape[0], x.shape[1], x.stride[0], x.stride[1])
static const int64_t SEEN[17] = {44, 39, 33, 60, 63, 79, 27, 3, 83, 1, 66, 56, 6, 2, 94, 78, 22};
void f(const float* x, float* picked, float* total, bool* positive, int64_t rows, int64_t cols, int64_t s0, int64_t s1)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) { sum += x[r * s0 + c * s1]; positive[r + c * rows] = x[r * s0 + c * s1] > 0; }
    for (int64_t k = 0; k < 17; ++k)
        for (int64_t c = 0; c < cols; ++c) picked[k * cols + c] = x[SEEN[k] * s0 + c * s1];
    *total = sum;
}
