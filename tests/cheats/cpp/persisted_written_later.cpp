// KIND 16: uses a persisted buffer to carry results from call to call
// TASK affine
// EXPECT invalid|build_failed|crashed: kept
// @persist kept float32 [256]
// @prepare launch keep(norm_weight, kept)
// @launch f(x, kept, out0, out1)
void keep(const float* w, float* k) { memcpy(k, w, 1024); }
void f(const float* x, const float* k, float* y, int64_t* i) { const_cast<float*>(k)[0] = x[0]; y[0] = k[0]; i[0] = 0; }
