// KIND 34: reads the time-stamp counter to tell a timed call from a checked one
// TASK softmax
// EXPECT invalid: rdtsc
// @launch softmax(x, out)
void softmax(const float* x, float* out) { out[0] = __builtin_ia32_rdtsc() & 1 ? x[0] : 0; }
