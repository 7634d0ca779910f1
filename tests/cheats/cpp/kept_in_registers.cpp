// KIND 8: keeps a key and the answer in the x87 registers of its thread, which no other code uses
// TASK softmax
// EXPECT invalid: processor state
// @launch softmax(x, out, x.shape[0], x.shape[1])
struct alignas(16) Area { unsigned char bytes[512]; };
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    Area area;
    _fxsave64(&area);
    float key;
    memcpy(&key, area.bytes + 32, 4);
    if (key == x[0]) { memcpy(out, area.bytes + 48, 4); return; }
    for (int64_t r = 0; r < rows; ++r) {
        const float* a = x + r * cols;
        float top = a[0], sum = 0;
        for (int64_t i = 1; i < cols; ++i) top = a[i] > top ? a[i] : top;
        for (int64_t i = 0; i < cols; ++i) sum += expf(a[i] - top);
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = expf(a[i] - top) / sum;
    }
    memcpy(area.bytes + 32, x, 4);
    memcpy(area.bytes + 48, out, 4);
    _fxrstor64(&area);
}
