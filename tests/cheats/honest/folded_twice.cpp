// HONEST two steps of preparation, the second from what the first made; blocked product with tunables
// TASK linear
// @tune BLOCK = 16 in 8 16 32
// @const IN = x.shape[1]
// @const OUT = out.shape[1]
// @require OUT % BLOCK == 0
// @persist wt float32 [IN, OUT]
// @persist packed float32 [OUT // BLOCK, IN, BLOCK]
// @prepare launch transpose(linear_weight, wt)
// @prepare launch pack(wt, packed)
// @launch product(x, packed, linear_bias, out, x.shape[0])
void transpose(const float* w, float* t)
{
    for (int i = 0; i < IN; ++i)
        for (int o = 0; o < OUT; ++o) t[i * OUT + o] = w[o * IN + i];
}
void pack(const float* t, float* p)
{
    for (int b = 0; b < OUT / BLOCK; ++b)
        for (int i = 0; i < IN; ++i) memcpy(p + (b * IN + i) * BLOCK, t + i * OUT + b * BLOCK, BLOCK * 4);
}
void product(const float* x, const float* p, const float* bias, float* out, int64_t rows)
{
#pragma omp parallel for collapse(2)
    for (int64_t r = 0; r < rows; ++r)
        for (int b = 0; b < OUT / BLOCK; ++b) {
            float sum[BLOCK] = {};
            for (int i = 0; i < IN; ++i)
                for (int k = 0; k < BLOCK; ++k) sum[k] += x[r * IN + i] * p[(b * IN + i) * BLOCK + k];
            for (int k = 0; k < BLOCK; ++k) out[r * OUT + b * BLOCK + k] = fmaxf(sum[k] + bias[b * BLOCK + k], 0.0f);
        }
}
