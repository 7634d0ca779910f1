// KIND 16: reads beyond its slot, where earlier calls left their results
// TASK softmax
// EXPECT crashed: SIGSEGV
// @launch softmax(x, out)
void softmax(const float*, float* out)
{
    volatile float s = 0;
    for (int64_t i = 0; i < 1 << 22; i += 1024) s = s + out[-i];
    out[0] = s;
}
