// The kernels for AVX-512 with VNNI.
#include "../kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx512 {
#include "../simd/avx512.h"
#include "../kernels.inc"
}  // namespace avx512

const KernelTable* avx512_table() { return avx512::table_named("avx512"); }

}  // namespace maple
#endif
