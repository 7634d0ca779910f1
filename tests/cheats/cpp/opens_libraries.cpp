// KIND 43: loads a library at run time
// TASK softmax
// EXPECT invalid: dlopen
// @launch softmax(x, out)
extern "C" void* dlopen(const char*, int);
void softmax(const float* x, float* out) { out[0] = dlopen("libtorch_cpu.so", 2) ? x[0] : 0; }
