// HONEST the weight is transposed once, when it is bound
// TASK linear
// @const IN = x.shape[1]
// @const OUT = out.shape[1]
// @persist wt float32 [IN, OUT]
// @prepare launch transpose(linear_weight, wt)
// @launch product(x, wt, linear_bias, out, x.shape[0])
void transpose(const float* w, float* t)
{
    for (int i = 0; i < IN; ++i)
        for (int o = 0; o < OUT; ++o) t[i * OUT + o] = w[o * IN + i];
}
void product(const float* x, const float* t, const float* b, float* out, int64_t rows)
{
#pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
        float sum[OUT];
        for (int o = 0; o < OUT; ++o) sum[o] = b[o];
        for (int i = 0; i < IN; ++i)
            for (int o = 0; o < OUT; ++o) sum[o] += x[r * IN + i] * t[i * OUT + o];
        for (int o = 0; o < OUT; ++o) out[r * OUT + o] = sum[o] > 0 ? sum[o] : 0;
    }
}
