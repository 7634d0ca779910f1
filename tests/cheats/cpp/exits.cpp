// KIND 5: ends the process as if all were well
// TASK softmax
// EXPECT invalid: exit
// @launch softmax(x, out)
extern "C" void _exit(int);
void softmax(const float* x, float* out) { out[0] = x[0]; _exit(0); }
