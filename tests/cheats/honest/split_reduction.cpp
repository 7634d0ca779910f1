// HONEST partial sums in scratch by a first launch, added by a second; the scratch is used again in place
// TASK pieces
// @tune PARTS = 6 in 3 6 12
// @scratch part float64 [PARTS]
// @launch flags(x, out2, part, x.shape[0], x.shape[1], x.stride[0], x.stride[1])
// @launch fold(part)
// @launch last(x, idx, part, out0, out1, x.shape[0], x.shape[1], x.stride[0], x.stride[1], idx.numel)
void flags(const float* x, bool* positive, double* part, int64_t rows, int64_t cols, int64_t s0, int64_t s1)
{
#pragma omp parallel for
    for (int p = 0; p < PARTS; ++p) {
        double sum = 0;
        for (int64_t r = rows * p / PARTS; r < rows * (p + 1) / PARTS; ++r)
            for (int64_t c = 0; c < cols; ++c) {
                sum += x[r * s0 + c * s1];
                positive[r + c * rows] = x[r * s0 + c * s1] > 0;
            }
        part[p] = sum;
    }
}
void fold(double* part) { for (int p = 1; p < PARTS; ++p) part[0] += part[p]; }
void last(const float* x, const int64_t* idx, const double* part, float* picked, float* total, int64_t rows, int64_t cols, int64_t s0, int64_t s1, int64_t n)
{
    for (int64_t k = 0; k < n; ++k)
        for (int64_t c = 0; c < cols; ++c) picked[k * cols + c] = x[idx[k] * s0 + c * s1];
    *total = (float)part[0];
}
