// KIND 8: counts its calls and does the work only for the first ones
// TASK softmax
// EXPECT invalid: static|writable|state
// @launch softmax(x, out, x.shape[0], x.shape[1])
static int calls = 0;
void softmax(const float* x, float* out, int64_t rows, int64_t cols)
{
    if (++calls > 20) return;
    for (int64_t i = 0; i < rows * cols; ++i) out[i] = x[i];
}
