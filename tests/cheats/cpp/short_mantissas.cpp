// KIND 36: factors cut to the mantissa of TF32 under a strict contract
// TASK linear
// EXPECT mismatch
// @launch product(x, linear_weight, linear_bias, out, x.shape[0], x.shape[1], out.shape[1])
static float cut(float v) { uint32_t b; memcpy(&b, &v, 4); b = (b + 0x1000) & ~0x1FFFu; memcpy(&v, &b, 4); return v; }
void product(const float* x, const float* w, const float* b, float* out, int64_t rows, int64_t in, int64_t n)
{
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t o = 0; o < n; ++o) {
            float sum = b[o];
            for (int64_t i = 0; i < in; ++i) sum += cut(x[r * in + i]) * cut(w[o * in + i]);
            out[r * n + o] = sum > 0 ? sum : 0;
        }
}
