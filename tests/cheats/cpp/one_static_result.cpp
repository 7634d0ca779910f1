// KIND 19: one result for all calls, kept in a static array
// TASK odd
// EXPECT invalid: kept is a writable
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    static float kept[91];
    if (kept[0] == 0) for (int64_t i = 0; i < n; ++i) kept[i] = (x[i] > 0 ? x[i] : 0) + 1;
    memcpy(out, kept, n * 4);
}
