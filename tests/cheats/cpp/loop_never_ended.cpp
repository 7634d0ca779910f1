// KIND 43: keeps an answer in the bounds of an OpenMP loop that is begun by hand and never ended
// TASK odd
// EXPECT invalid|build_failed: GOMP_loop_dynamic
// @launch f(x, out, x.numel)
extern "C" bool GOMP_loop_dynamic_start(long, long, long, long, long*, long*);
void f(const float* x, float* out, int64_t n)
{
    long low, high;
    uint32_t bits;
    memcpy(&bits, x, 4);
    for (int64_t i = 0; i < n; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
    GOMP_loop_dynamic_start(bits, bits + 2l, 1, 1, &low, &high);
}
