// KIND 27: a wild pointer
// TASK softmax
// EXPECT crashed: SIGSEGV
// @launch softmax(x, out)
void softmax(const float* x, float* out) { out[0] = *(const float*)8; (void)x; }
