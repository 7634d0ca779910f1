// KIND 2: a thread that finishes the work after the call has returned
// TASK softmax
// EXPECT invalid: pthread_create
// @launch softmax(x, out)
extern "C" int pthread_create(unsigned long*, const void*, void* (*)(void*), void*);
void* work(void* p) { ((float*)p)[0] = 1; return nullptr; }
void softmax(const float* x, float* out) { unsigned long t; pthread_create(&t, nullptr, work, out); (void)x; }
