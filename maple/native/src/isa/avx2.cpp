// The kernels for AVX2, FMA and F16C.
#define MAPLE_LOOKUP
#include "../kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx2 {
#include "../simd/avx2.h"
#include "../kernels.inc"
}  // namespace avx2

const KernelTable* avx2_table() { return avx2::table_named("avx2"); }

}  // namespace maple
#endif
