// HONEST scratch between two launches, constants from shapes, a fill
// TASK softmax
// @const ROWS = x.shape[0]
// @const COLS = x.shape[1]
// @scratch peak float32 [ROWS]
// @scratch total float64 [ROWS] zero
// @fill peak -inf
// @launch peaks(x, peak)
// @launch totals(x, peak, total)
// @launch divide<COLS>(x, peak, total, out)
void peaks(const float* x, float* peak)
{
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < COLS; ++i) peak[r] = x[r * COLS + i] > peak[r] ? x[r * COLS + i] : peak[r];
}
void totals(const float* x, const float* peak, double* total)
{
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < COLS; ++i) total[r] += expf(x[r * COLS + i] - peak[r]);
}
template <int N> void divide(const float* x, const float* peak, const double* total, float* out)
{
#pragma omp parallel for
    for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < N; ++i) out[r * N + i] = (float)(expf(x[r * N + i] - peak[r]) / total[r]);
}
