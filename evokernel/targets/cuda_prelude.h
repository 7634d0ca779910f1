// After the headers and before the code of every cuda kernel: what the C++ headers that kernels include by habit would have brought (they are
// left out). Types and values are those of CCCL's <cuda/std/cstdint>, so that both may stand in one file.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef long long intptr_t;
typedef unsigned long long uintptr_t;
typedef long ptrdiff_t;

#undef INFINITY
#define INFINITY __builtin_bit_cast(float, 0x7f800000u)
#undef NAN
#define NAN __builtin_bit_cast(float, 0x7fffffffu)
#define HUGE_VAL __builtin_bit_cast(double, 0x7ff0000000000000ull)
#define HUGE_VALF __builtin_bit_cast(float, 0x7f800000u)

#define FLT_DIG 6
#define FLT_EPSILON 1.19209290e-07f
#define FLT_MAX 3.40282347e+38f
#define FLT_MIN 1.17549435e-38f
#define FLT_MANT_DIG 24
#define DBL_DIG 15
#define DBL_EPSILON 2.2204460492503131e-16
#define DBL_MAX 1.7976931348623157e+308
#define DBL_MIN 2.2250738585072014e-308
#define DBL_MANT_DIG 53

#define CHAR_BIT 8
#define SCHAR_MAX 127
#define SCHAR_MIN (-128)
#define UCHAR_MAX 255
#define SHRT_MAX 32767
#define SHRT_MIN (-32768)
#define USHRT_MAX 65535
#define INT_MAX 2147483647
#define INT_MIN (-INT_MAX - 1)
#define UINT_MAX 4294967295u
#define LONG_MAX 9223372036854775807l
#define LONG_MIN (-LONG_MAX - 1)
#define ULONG_MAX 18446744073709551615ul
#define LLONG_MAX 9223372036854775807ll
#define LLONG_MIN (-LLONG_MAX - 1)
#define ULLONG_MAX 18446744073709551615ull
#define INT8_MAX SCHAR_MAX
#define INT8_MIN SCHAR_MIN
#define INT16_MAX SHRT_MAX
#define INT16_MIN SHRT_MIN
#define INT32_MAX INT_MAX
#define INT32_MIN INT_MIN
#define INT64_MAX LLONG_MAX
#define INT64_MIN LLONG_MIN
#define UINT8_MAX UCHAR_MAX
#define UINT16_MAX USHRT_MAX
#define UINT32_MAX UINT_MAX
#define UINT64_MAX ULLONG_MAX
#define SIZE_MAX ULONG_MAX

#define M_E 2.71828182845904523536
#define M_LOG2E 1.44269504088896340736
#define M_LN2 0.69314718055994530942
#define M_LN10 2.30258509299404568402
#define M_PI 3.14159265358979323846
#define M_PI_2 1.57079632679489661923
#define M_PI_4 0.78539816339744830962
#define M_1_PI 0.31830988618379067154
#define M_2_PI 0.63661977236758134308
#define M_2_SQRTPI 1.12837916709551257390
#define M_SQRT2 1.41421356237309504880
#define M_SQRT1_2 0.70710678118654752440

// The mixed forms of C++, which NVRTC finds ambiguous.
inline double pow(float x, double y) { return pow(static_cast<double>(x), y); }
inline double pow(double x, float y) { return pow(x, static_cast<double>(y)); }
inline double pow(double x, int y) { return pow(x, static_cast<double>(y)); }
