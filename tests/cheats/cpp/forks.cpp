// KIND 45: starts a process
// TASK softmax
// EXPECT invalid: fork
// @launch softmax(x, out)
extern "C" int fork();
void softmax(const float* x, float* out) { if (fork()) out[0] = x[0]; }
