// KIND 45: runs a program
// TASK softmax
// EXPECT invalid: system
// @launch softmax(x, out)
extern "C" int system(const char*);
void softmax(const float* x, float* out) { system("touch /tmp/evokernel-cheat"); out[0] = x[0]; }
