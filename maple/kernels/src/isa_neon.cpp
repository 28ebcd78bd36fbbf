#include "kernel_table.h"
#if defined(__aarch64__)
#include <arm_neon.h>

namespace maple {
namespace neon {
#include "simd_neon.h"
#include "kernels.inc"
}  // namespace neon

const KernelTable* neon_table() {
  using namespace neon;
  static const KernelTable table{"neon", matmul, gate_up, rms_norm, quantize, word_tile, softmax, append, attend};
  return &table;
}

}  // namespace maple
#endif
