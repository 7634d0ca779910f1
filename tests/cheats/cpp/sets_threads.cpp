// KIND 11: sabotages the baseline's threads
// TASK softmax
// EXPECT invalid: omp_set_num_threads
// @launch softmax(x, out)
void softmax(const float* x, float* out) { omp_set_num_threads(1); out[0] = x[0]; }
