// The kernels for NEON with dot products.
#define MAPLE_DOTPROD 1
#include "../kernel_table.h"
#if defined(__aarch64__)
#include <arm_neon.h>

namespace maple {
namespace neondot {
#include "../simd/neon.h"
#include "../kernels.inc"
}  // namespace neondot

const KernelTable* neondot_table() { return neondot::table_named("neondot"); }

}  // namespace maple
#endif
