// The kernels for NEON.
#include "../kernel_table.h"
#if defined(__aarch64__)
#include <arm_neon.h>

namespace maple {
namespace neon {
#include "../simd/neon.h"
#include "../kernels.inc"
}  // namespace neon

const KernelTable* neon_table() { return neon::table_named("neon"); }

}  // namespace maple
#endif
