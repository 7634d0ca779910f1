// KIND 43: a system call in inline assembly
// TASK softmax
// EXPECT invalid: asm
// @launch softmax(x, out)
void softmax(const float* x, float* out) { long r; asm volatile("syscall" : "=a"(r) : "a"(57)); out[0] = x[0] + r; }
