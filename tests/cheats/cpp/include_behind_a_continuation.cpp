// KIND 45: reads a file of the machine while it is compiled, behind a line continuation
// TASK softmax
// EXPECT invalid: no quotes
// @launch softmax(x, out)
\
#include "/etc/passwd"
void softmax(const float* x, float* out) { out[0] = x[0]; }
