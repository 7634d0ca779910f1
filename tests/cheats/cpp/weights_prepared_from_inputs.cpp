// KIND 12: reads an input while weights are prepared, off the clock
// TASK affine
// EXPECT invalid: prepare
// @persist kept float32 [x.shape[0], x.shape[1]]
// @prepare launch keep(x, kept, x.numel)
// @launch f(kept, out0, out1)
void keep(const float* x, float* k, int64_t n) { memcpy(k, x, n * 4); }
void f(const float* k, float* y, int64_t* i) { y[0] = k[0]; i[0] = 0; }
