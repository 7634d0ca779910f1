// HONEST works on what is valid only, so that its time depends on the data
// TASK lengths
// @launch f(x, lengths, out, x.shape[0], x.shape[1])
void f(const float* x, const int64_t* lengths, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < lengths[r]; ++i) out[r * cols + i] = expf(sinf(x[r * cols + i]));
        for (int64_t i = lengths[r]; i < cols; ++i) out[r * cols + i] = 0;
    }
}
