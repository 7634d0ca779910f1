// KIND 45: floods the output
// TASK softmax
// EXPECT invalid: printf
// @launch softmax(x, out)
extern "C" int printf(const char*, ...);
void softmax(const float* x, float* out) { for (int i = 0; i < 1000000; ++i) printf("verified %f\n", x[0]); out[0] = x[0]; }
