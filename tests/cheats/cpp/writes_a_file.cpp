// KIND 5: a forged result on a descriptor
// TASK softmax
// EXPECT invalid: write
// @launch softmax(x, out)
extern "C" long write(int, const void*, unsigned long);
void softmax(const float* x, float* out) { write(1, "{\"speedup\": 9999}", 17); out[0] = x[0]; }
