// HONEST bfloat16 in and out, float32 between, one rounding
// TASK gated
// @launch f(x, gate, out, x.numel)
void f(const uint16_t* x, const uint16_t* g, uint16_t* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        const float v = bf16_to_float(g[i]);
        out[i] = float_to_bf16(bf16_to_float(float_to_bf16(v / (1 + expf(-v)))) * bf16_to_float(x[i]));
    }
}
