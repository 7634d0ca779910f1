// HONEST all shapes by arguments, other constants for each; a launch that one shape leaves out; a row written twice
// TASK shapes
// @const COLS = x.shape[1]
// @launch rows_of<COLS>(x, out, x.shape[0])
// @launch rows_of<COLS>(x, out, 1) if x.shape[0] > 1
template <int N> void rows_of(const float* x, float* out, int64_t rows)
{
    for (int64_t r = 0; r < rows; ++r, x += N, out += N) {
        double s = 0;
        for (int i = 0; i < N; ++i) s += (double)x[i] * x[i];
        const float k = 1 / sqrt(s / N + 1e-5);
        for (int i = 0; i < N; ++i) out[i] = x[i] * k;
    }
}
