// KIND 24: makes the input trivial for whoever looks at it later
// TASK softmax
// EXPECT crashed: read-only buffer x
// @launch softmax(x, out, x.numel)
void softmax(const float* x, float* out, int64_t n) { memset(const_cast<float*>(x), 0, n * 4); out[0] = 1; }
