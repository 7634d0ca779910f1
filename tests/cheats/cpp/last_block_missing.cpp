// KIND 30: the blocks are counted by a division that leaves the last one out
// TASK odd
// EXPECT mismatch
// @launch f(x, out, x.numel // 16)
void f(const float* x, float* out, int64_t blocks)
{
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t i = 16 * b; i < 16 * b + 16; ++i) out[i] = (x[i] > 0 ? x[i] : 0) + 1;
}
