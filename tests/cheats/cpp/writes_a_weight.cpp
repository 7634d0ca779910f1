// KIND 25: changes a parameter
// TASK affine
// EXPECT crashed: read-only buffer norm_weight
// @launch f(norm_weight, out0, out1)
void f(const float* w, float* y, int64_t* i) { const_cast<float*>(w)[3] = 1; y[0] = 0; i[0] = 0; }
