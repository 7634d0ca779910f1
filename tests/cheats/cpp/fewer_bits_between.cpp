// KIND 36: every intermediate value cut to five bits of mantissa, where one rounding to seven at the end is allowed
// TASK gated
// EXPECT mismatch: units|rms
// @launch f(x, gate, out, x.numel)
static float cut(float v) { uint32_t b; memcpy(&b, &v, 4); b &= 0xFFFC0000u; memcpy(&v, &b, 4); return v; }
void f(const uint16_t* x, const uint16_t* g, uint16_t* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) {
        const float v = bf16_to_float(g[i]), bottom = cut(1 + cut(expf(-v)));
        out[i] = float_to_bf16(cut(cut(v / bottom) * bf16_to_float(x[i])));
    }
}
