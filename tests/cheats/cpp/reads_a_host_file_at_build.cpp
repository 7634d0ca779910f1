// KIND 35: includes a file of the machine
// TASK softmax
// EXPECT invalid: include
// @launch softmax(x, out)
void softmax(const float* x, float* out) { const char* s =
#include "/etc/passwd"
; out[0] = x[0] + s[0]; }
