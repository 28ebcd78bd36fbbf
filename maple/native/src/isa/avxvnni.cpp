// The kernels for AVX2 with AVX-VNNI.
#define MAPLE_AVX_VNNI 1
#define MAPLE_LOOKUP
#include "../kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avxvnni {
#include "../simd/avx2.h"
#include "../kernels.inc"
}  // namespace avxvnni

const KernelTable* avxvnni_table() { return avxvnni::table_named("avxvnni"); }

}  // namespace maple
#endif
