// KIND 16: reads in scratch what the call before it left there
// TASK softmax
// EXPECT mismatch
// @scratch kept float32 [x.shape[0], x.shape[1]]
// @launch softmax(x, kept, out, x.shape[0], x.shape[1])
void softmax(const float* x, float* kept, float* out, int64_t rows, int64_t cols)
{
    if (kept[0] == kept[0] && kept[0] != 0) { memcpy(out, kept, rows * cols * 4); return; }
    for (int64_t i = 0; i < rows * cols; ++i) out[i] = kept[i] = x[i];
}
