// HONEST the inner dimension of a product split, halves added by a second launch
// TASK linear
// @scratch parts float32 [2, x.shape[0], out.shape[1]]
// @launch halves(x, linear_weight, parts, x.shape[0], x.shape[1], out.shape[1])
// @launch join(parts, linear_bias, out, out.numel, out.shape[1])
void halves(const float* x, const float* w, float* parts, int64_t rows, int64_t in, int64_t n)
{
#pragma omp parallel for collapse(2)
    for (int h = 0; h < 2; ++h)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t o = 0; o < n; ++o) {
                float sum = 0;
                for (int64_t i = in / 2 * h; i < (h ? in : in / 2); ++i) sum += x[r * in + i] * w[o * in + i];
                parts[(h * rows + r) * n + o] = sum;
            }
}
void join(const float* parts, const float* b, float* out, int64_t numel, int64_t n)
{
    for (int64_t i = 0; i < numel; ++i) out[i] = std::max(parts[i] + parts[numel + i] + b[i % n], 0.0f);
}
