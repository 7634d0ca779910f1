// KIND 12: work at load time
// TASK softmax
// EXPECT invalid: constructor
// @launch softmax(x, out)
__attribute__((constructor)) void early() { volatile int work = 0; ++work; }
void softmax(const float* x, float* out) { out[0] = x[0]; }
