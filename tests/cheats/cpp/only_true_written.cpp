// KIND 20: writes a flag only where it is true, and hopes that the rest is false already
// TASK pieces
// EXPECT mismatch: other than 0 and 1
// @launch f(x, idx, out0, out1, out2, x.shape[0], x.shape[1], x.stride[0], x.stride[1], idx.numel)
void f(const float* x, const int64_t* idx, float* picked, float* total, bool* positive, int64_t rows, int64_t cols, int64_t s0, int64_t s1, int64_t n)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < cols; ++c) {
            sum += x[r * s0 + c * s1];
            if (x[r * s0 + c * s1] > 0) positive[r + c * rows] = true;
        }
    for (int64_t k = 0; k < n; ++k)
        for (int64_t c = 0; c < cols; ++c) picked[k * cols + c] = x[idx[k] * s0 + c * s1];
    *total = sum;
}
