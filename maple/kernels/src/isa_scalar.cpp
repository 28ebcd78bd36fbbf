#include "kernel_table.h"
#include <cmath>

namespace maple {
namespace scalar {
#include "simd_scalar.h"
#include "kernels.inc"
}  // namespace scalar

const KernelTable* scalar_table() {
  using namespace scalar;
  static const KernelTable table{"scalar", matmul, gate_up, rms_norm, quantize, word_tile, softmax, append, attend};
  return &table;
}

}  // namespace maple
