// KIND 4: makes foreign code writable, to patch the clock
// TASK softmax
// EXPECT invalid: mprotect
// @launch softmax(x, out)
extern "C" int mprotect(void*, unsigned long, int);
void softmax(const float* x, float* out) { out[0] = mprotect((void*)((long)&softmax & ~4095l), 4096, 7) ? x[0] : 1; }
