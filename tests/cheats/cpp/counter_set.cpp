// KIND 38: sets the counter that forward adds to
// TASK mix
// EXPECT mismatch: rows_seen
// @launch f(x, weight, idx, rows_seen, out0, out1, out_rows_seen, x.shape[0], idx.numel)
void f(const float* x, const float* w, const int64_t* idx, const int64_t* seen, float* out, int64_t* count, int64_t* seen_out, int64_t rows, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        const float* row = x + idx[i] * 64;
        float s = 0;
        for (int j = 0; j < 64; ++j) s += std::max(row[j] * w[j], 0.f);
        out[i] = s;
    }
    for (int64_t r = 0; r < rows; ++r) {
        int64_t c = 0;
        for (int j = 0; j < 64; ++j) c += x[r * 64 + j] > 0;
        count[r] = c;
    }
    *seen_out = rows;
}
