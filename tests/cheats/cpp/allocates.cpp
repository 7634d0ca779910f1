// KIND 17: memory of its own that outlives the call
// TASK softmax
// EXPECT invalid: malloc
// @launch softmax(x, out)
extern "C" void* malloc(unsigned long);
void softmax(const float* x, float* out) { volatile float* p = (float*)malloc(64); p[0] = x[0]; out[0] = p[0] + (long)p; }
