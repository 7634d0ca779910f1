// KIND 45: never returns
// TASK softmax
// EXPECT timeout
// @launch softmax(x, out)
void softmax(const float* x, float* out) { while (*(const volatile float*)x < 1e30f) out[0] = x[0]; }
