// KIND 41: a vendor's product that the plan does not name
// TASK linear
// EXPECT invalid: cblas_sgemm
// @launch product(x, linear_weight, out)
extern "C" void cblas_sgemm(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
void product(const float* x, const float* w, float* out) { cblas_sgemm(101, 111, 112, 40, 192, 96, 1, x, 96, w, 96, 0, out, 192); }
