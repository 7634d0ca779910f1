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

// OpenMP's own entry points are the compiler's to call: called by hand they keep state between calls or leave threads at work.
#pragma GCC poison GOMP_atomic_end GOMP_atomic_start GOMP_barrier GOMP_barrier_cancel GOMP_cancel GOMP_cancellation_point GOMP_critical_end
#pragma GCC poison GOMP_critical_name_end GOMP_critical_name_start GOMP_critical_start GOMP_doacross_post GOMP_doacross_ull_post
#pragma GCC poison GOMP_doacross_ull_wait GOMP_doacross_wait GOMP_loop_doacross_dynamic_start GOMP_loop_doacross_guided_start
#pragma GCC poison GOMP_loop_doacross_runtime_start GOMP_loop_doacross_start GOMP_loop_doacross_static_start GOMP_loop_dynamic_next
#pragma GCC poison GOMP_loop_dynamic_start GOMP_loop_end GOMP_loop_end_cancel GOMP_loop_end_nowait GOMP_loop_guided_next GOMP_loop_guided_start
#pragma GCC poison GOMP_loop_maybe_nonmonotonic_runtime_next GOMP_loop_maybe_nonmonotonic_runtime_start GOMP_loop_nonmonotonic_dynamic_next
#pragma GCC poison GOMP_loop_nonmonotonic_dynamic_start GOMP_loop_nonmonotonic_guided_next GOMP_loop_nonmonotonic_guided_start
#pragma GCC poison GOMP_loop_nonmonotonic_runtime_next GOMP_loop_nonmonotonic_runtime_start GOMP_loop_ordered_dynamic_next
#pragma GCC poison GOMP_loop_ordered_dynamic_start GOMP_loop_ordered_guided_next GOMP_loop_ordered_guided_start GOMP_loop_ordered_runtime_next
#pragma GCC poison GOMP_loop_ordered_runtime_start GOMP_loop_ordered_start GOMP_loop_ordered_static_next GOMP_loop_ordered_static_start
#pragma GCC poison GOMP_loop_runtime_next GOMP_loop_runtime_start GOMP_loop_start GOMP_loop_static_next GOMP_loop_static_start
#pragma GCC poison GOMP_loop_ull_doacross_dynamic_start GOMP_loop_ull_doacross_guided_start GOMP_loop_ull_doacross_runtime_start
#pragma GCC poison GOMP_loop_ull_doacross_start GOMP_loop_ull_doacross_static_start GOMP_loop_ull_dynamic_next GOMP_loop_ull_dynamic_start
#pragma GCC poison GOMP_loop_ull_guided_next GOMP_loop_ull_guided_start GOMP_loop_ull_maybe_nonmonotonic_runtime_next
#pragma GCC poison GOMP_loop_ull_maybe_nonmonotonic_runtime_start GOMP_loop_ull_nonmonotonic_dynamic_next GOMP_loop_ull_nonmonotonic_dynamic_start
#pragma GCC poison GOMP_loop_ull_nonmonotonic_guided_next GOMP_loop_ull_nonmonotonic_guided_start GOMP_loop_ull_nonmonotonic_runtime_next
#pragma GCC poison GOMP_loop_ull_nonmonotonic_runtime_start GOMP_loop_ull_ordered_dynamic_next GOMP_loop_ull_ordered_dynamic_start
#pragma GCC poison GOMP_loop_ull_ordered_guided_next GOMP_loop_ull_ordered_guided_start GOMP_loop_ull_ordered_runtime_next
#pragma GCC poison GOMP_loop_ull_ordered_runtime_start GOMP_loop_ull_ordered_start GOMP_loop_ull_ordered_static_next
#pragma GCC poison GOMP_loop_ull_ordered_static_start GOMP_loop_ull_runtime_next GOMP_loop_ull_runtime_start GOMP_loop_ull_start
#pragma GCC poison GOMP_loop_ull_static_next GOMP_loop_ull_static_start GOMP_ordered_end GOMP_ordered_start GOMP_parallel GOMP_parallel_end
#pragma GCC poison GOMP_parallel_loop_dynamic GOMP_parallel_loop_dynamic_start GOMP_parallel_loop_guided GOMP_parallel_loop_guided_start
#pragma GCC poison GOMP_parallel_loop_maybe_nonmonotonic_runtime GOMP_parallel_loop_nonmonotonic_dynamic GOMP_parallel_loop_nonmonotonic_guided
#pragma GCC poison GOMP_parallel_loop_nonmonotonic_runtime GOMP_parallel_loop_runtime GOMP_parallel_loop_runtime_start GOMP_parallel_loop_static
#pragma GCC poison GOMP_parallel_loop_static_start GOMP_parallel_reductions GOMP_parallel_sections GOMP_parallel_sections_start GOMP_parallel_start
#pragma GCC poison GOMP_scope_start GOMP_sections2_start GOMP_sections_end GOMP_sections_end_cancel GOMP_sections_end_nowait GOMP_sections_next
#pragma GCC poison GOMP_sections_start GOMP_single_copy_end GOMP_single_copy_start GOMP_single_start GOMP_task GOMP_task_reduction_remap
#pragma GCC poison GOMP_taskgroup_end GOMP_taskgroup_reduction_register GOMP_taskgroup_reduction_unregister GOMP_taskgroup_start GOMP_taskloop
#pragma GCC poison GOMP_taskloop_ull GOMP_taskwait GOMP_taskwait_depend GOMP_taskyield GOMP_workshare_task_reduction_unregister
#pragma GCC poison __builtin_setjmp __builtin_longjmp setjmp _setjmp sigsetjmp longjmp _longjmp siglongjmp
