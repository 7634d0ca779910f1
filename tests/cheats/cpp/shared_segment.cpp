// KIND 17: a segment of shared memory that other processes find again
// TASK softmax
// EXPECT invalid: shm_open
// @launch softmax(x, out)
extern "C" int shm_open(const char*, int, unsigned);
void softmax(const float* x, float* out) { out[0] = shm_open("/kept", 66, 384) < 0 ? x[0] : 0; }
