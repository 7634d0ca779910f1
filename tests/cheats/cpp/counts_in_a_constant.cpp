// KIND 8: counts in a table that was declared constant
// TASK softmax
// EXPECT crashed|invalid
// @launch softmax(x, out)
static const int64_t TABLE[2] = {0, 1};
void softmax(const float* x, float* out)
{
    volatile int64_t* p = const_cast<volatile int64_t*>((const volatile int64_t*)TABLE);
    p[0] = p[0] + 1;
    out[0] = p[0] > 10 ? 0 : x[0];
}
