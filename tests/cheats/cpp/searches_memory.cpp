// KIND 21: searches the address space around the buffers for the expected values
// TASK softmax
// EXPECT crashed: past the end|before the start|no buffer
// @launch softmax(x, out)
void softmax(const float* x, float* out) { float s = 0; for (int64_t i = 0; i < 1 << 24; ++i) s += x[i]; out[0] = s; }
