// KIND 7: answers with what the call before had to compute, and puts its own work off
// TASK odd
// EXPECT mismatch
// @scratch later float32 [x.shape[0], x.shape[1]]
// @launch f(x, later, out, x.numel)
void f(const float* x, float* later, float* out, int64_t n)
{
    for (int64_t i = 0; i < n; ++i) out[i] = (later[i] > 0 ? later[i] : 0) + 1;
    memcpy(later, x, n * 4);
}
