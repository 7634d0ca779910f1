// KIND 27: takes it for granted that what it prepares begins with -1 everywhere
// TASK linear
// EXPECT mismatch
// @persist kept float32 [linear_weight.numel + 1]
// @prepare launch keep(linear_weight, kept, linear_weight.numel)
// @launch f(x, kept, linear_bias, out, x.shape[0], x.shape[1], linear_bias.numel)
void keep(const float* w, float* kept, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) kept[i] = w[i];
}
void f(const float* x, const float* w, const float* b, float* out, int64_t rows, int64_t cols, int64_t wide)
{
    int32_t mark;
    memcpy(&mark, w + wide * cols, 4);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < wide; ++j) {
            float s = b[j];
            for (int64_t i = 0; i < cols; ++i) s += x[r * cols + i] * w[j * cols + i];
            out[r * wide + j] = mark == -1 ? std::max(s, 0.f) : 0.f;
        }
}
