// HONEST the library multiplies into the output, the epilogue works in place
// TASK linear
// @call out = linear(x, linear_weight, linear_bias)
// @launch relu(out, out.numel)
void relu(float* y, int64_t n) { for (int64_t i = 0; i < n; ++i) y[i] = y[i] > 0 ? y[i] : 0; }
