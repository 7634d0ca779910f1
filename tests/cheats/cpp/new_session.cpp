// KIND 45: a process in a session of its own
// TASK softmax
// EXPECT invalid: setsid
// @launch softmax(x, out)
extern "C" int setsid();
void softmax(const float* x, float* out) { setsid(); out[0] = x[0]; }
