// KIND 8: counts in a mutable member of a constant
// TASK softmax
// EXPECT invalid: state survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
struct State {
    mutable int n;
};
const State state{};
__global__ void softmax(const float* x, float* out) { if (++state.n < 10) out[threadIdx.x] = x[threadIdx.x]; }
