// KIND 27: an integer division by zero
// TASK softmax
// EXPECT crashed: SIGFPE
// @launch softmax(x, out, 0)
void softmax(const float* x, float* out, int64_t zero) { out[0] = (int64_t)x[0] / zero; }
