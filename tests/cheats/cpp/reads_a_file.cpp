// KIND 35: reads the task file for the seed
// TASK softmax
// EXPECT invalid: fopen
// @launch softmax(x, out)
extern "C" void* fopen(const char*, const char*);
void softmax(const float* x, float* out) { out[0] = fopen("/etc/passwd", "r") ? x[0] : 0; }
