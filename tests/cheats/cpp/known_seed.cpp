// KIND 35: rebuilds the inputs from a seed it knows
// TASK softmax
// EXPECT invalid: srand
// @launch softmax(x, out)
extern "C" void srand(unsigned);
extern "C" int rand();
void softmax(const float* x, float* out) { srand(42); out[0] = rand() % 7 + x[0]; }
