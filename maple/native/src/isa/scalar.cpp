// The kernels for any processor.
#include "../kernel_table.h"
#include <cmath>

namespace maple {
namespace scalar {
#include "../simd/scalar.h"
#include "../kernels.inc"
}  // namespace scalar

const KernelTable* scalar_table() { return scalar::table_named("scalar"); }

}  // namespace maple
