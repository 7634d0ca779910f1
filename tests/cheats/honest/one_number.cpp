// HONEST one number, small for one draw and large for another
// TASK total
// @launch f(x, out, x.numel)
void f(const float* x, float* out, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    out[0] = (float)exp(sum / 4);
}
