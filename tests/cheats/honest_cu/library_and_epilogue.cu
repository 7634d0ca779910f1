// HONEST the library multiplies into a buffer of its own, an epilogue adds the bias
// TASK linear
// @call y = mm(x, linear_weight.T)
// @launch finish<<<x.shape[0], out.shape[1]>>>(y, linear_bias, out)
__global__ void finish(const float* y, const float* b, float* out)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = fmaxf(y[i] + b[threadIdx.x], 0.f);
}
