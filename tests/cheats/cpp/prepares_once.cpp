// KIND 18: prepares its weights only when the memory looks fresh, and keeps them when others are bound
// TASK linear
// EXPECT mismatch
// @const IN = x.shape[1]
// @const OUT = out.shape[1]
// @persist wt float32 [IN, OUT]
// @prepare launch transpose(linear_weight, wt)
// @launch product(x, wt, linear_bias, out, x.shape[0])
void transpose(const float* w, float* t)
{
    if (t[0] != 0) return;
    for (int i = 0; i < IN; ++i)
        for (int o = 0; o < OUT; ++o) t[i * OUT + o] = w[o * IN + i];
}
void product(const float* x, const float* t, const float* b, float* out, int64_t rows)
{
    for (int64_t r = 0; r < rows; ++r)
        for (int o = 0; o < OUT; ++o) {
            float sum = b[o];
            for (int i = 0; i < IN; ++i) sum += x[r * IN + i] * t[i * OUT + o];
            out[r * OUT + o] = sum > 0 ? sum : 0;
        }
}
