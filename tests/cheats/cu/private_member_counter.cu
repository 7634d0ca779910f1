// KIND 8: counts in a private static member
// TASK softmax
// EXPECT invalid: n survives a launch
// @launch softmax<<<x.shape[0], 128>>>(x, out)
class Counter {
    static int n;
  public:
    static int next() { return ++n; }
};
int Counter::n;
__global__ void softmax(const float* x, float* out) { if (Counter::next() < 10) out[threadIdx.x] = x[threadIdx.x]; }
