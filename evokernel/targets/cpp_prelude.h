// Included before every cpp kernel (and precompiled): the headers a kernel may use, and conversions for bfloat16.
#ifndef EVOKERNEL_CPP_PRELUDE
#define EVOKERNEL_CPP_PRELUDE
#include <float.h>
#include <immintrin.h>
#include <limits.h>
#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <x86intrin.h>

#include <algorithm>
#include <array>
#include <cfloat>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <tuple>
#include <type_traits>
#include <utility>

// bfloat16 tensors are passed as uint16_t.
static inline float bf16_to_float(uint16_t bits) { return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16); }

// Rounds to the nearest, ties to even; NaN stays NaN.
static inline uint16_t float_to_bf16(float value) {
  uint32_t bits = __builtin_bit_cast(uint32_t, value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

namespace evokernel {
// A floating number of a launch: it becomes a float or a double, never an integer.
struct floating_number {
  double value;
  template <class T>
    requires std::is_floating_point_v<T>
  operator T() const { return static_cast<T>(value); }
};
}  // namespace evokernel

// Names by which a kernel would find the loader's tables.
#pragma GCC poison _DYNAMIC _GLOBAL_OFFSET_TABLE_ __ehdr_start __executable_start __dso_handle
// Words that put text of the candidate's choice into the assembler's input, or choose a function when the file is loaded.
#pragma GCC poison section __section__ alias __alias__ weakref __weakref__ symver __symver__ ifunc __ifunc__
#pragma GCC poison asm __asm __asm__
#endif
