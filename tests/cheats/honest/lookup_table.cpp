// HONEST a constant table (2**(i/16)) and early exit of idle threads
// TASK softmax
// @launch softmax(x, out, x.shape[0], x.shape[1])
static const double TABLE[16] = {1.0, 1.0442737824274138, 1.0905077326652577, 1.1387886347566916, 1.189207115002721, 1.241857812073484,
    1.2968395546510096, 1.3542555469368927, 1.4142135623730951, 1.4768261459394993, 1.5422108254079407, 1.6104903319492543,
    1.681792830507429, 1.7562521603732995, 1.8340080864093424, 1.9152065613971474};
static inline double exp_by_table(double v)
{
    if (v < -700) return 0;
    const double scaled = v * 23.083120654223414;
    const double whole = floor(scaled + 0.5);
    const double r = (scaled - whole) * 0.043321698784996581;
    const int k = (int)whole;
    const double p = 1 + r * (1 + r * (0.5 + r * (1.0 / 6 + r * (1.0 / 24 + r * (1.0 / 120 + r / 720)))));
    return ldexp(TABLE[k & 15] * p, k >> 4);
}
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
#pragma omp parallel
    for (int64_t r = omp_get_thread_num(); r < rows; r += omp_get_num_threads()) {
        float m = x[r * cols];
        for (int64_t i = 0; i < cols; ++i) m = std::max(m, x[r * cols + i]);
        double s = 0;
        for (int64_t i = 0; i < cols; ++i) s += exp_by_table((double)x[r * cols + i] - m);
        for (int64_t i = 0; i < cols; ++i) out[r * cols + i] = exp_by_table((double)x[r * cols + i] - m) / s;
    }
}
