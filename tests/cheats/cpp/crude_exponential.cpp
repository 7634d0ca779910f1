// KIND 36: an exponential from the bits of its argument, good to a few per cent
// TASK softmax
// EXPECT mismatch
// @launch softmax(x, out, x.shape[0], x.shape[1])
static float crude(float v) { if (v < -80) return 0; const int32_t b = (int32_t)(v * 12102203.2f) + 1064866805; float y; memcpy(&y, &b, 4); return y; }
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        double s = 0;
        float m = x[0];
        for (int64_t i = 0; i < cols; ++i) m = x[i] > m ? x[i] : m;
        for (int64_t i = 0; i < cols; ++i) s += out[i] = crude(x[i] - m);
        for (int64_t i = 0; i < cols; ++i) out[i] /= s;
    }
}
