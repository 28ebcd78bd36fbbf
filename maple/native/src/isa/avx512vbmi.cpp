// The kernels for AVX-512 with VNNI and VBMI.
#define MAPLE_LOOKUP
#define MAPLE_LOOKUP_TRIPLES
#include "../kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx512vbmi {
#include "../simd/avx512.h"
#include "../kernels.inc"
}  // namespace avx512vbmi

const KernelTable* avx512vbmi_table() { return avx512vbmi::table_named("avx512vbmi"); }

}  // namespace maple
#endif
