// HONEST a recursive function and a lambda that is passed to a template
// TASK softmax
// @launch softmax(x, out, x.shape[0], x.shape[1])
template <class F> static float by_halves(const F& at, int64_t low, int64_t high)
{
    if (high - low <= 8) {
        float s = 0;
        for (int64_t i = low; i < high; ++i) s += at(i);
        return s;
    }
    const int64_t middle = (low + high) / 2;
    return by_halves(at, low, middle) + by_halves(at, middle, high);
}
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; ++r, x += cols, out += cols) {
        float m = -INFINITY;
        for (int64_t i = 0; i < cols; ++i) m = fmaxf(m, x[i]);
        const float k = 1 / by_halves([&](int64_t i) { return out[i] = expf(x[i] - m); }, 0, cols);
        for (int64_t i = 0; i < cols; ++i) out[i] *= k;
    }
}
