#include "kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx2 {
#include "simd_avx2.h"
#include "kernels.inc"
}  // namespace avx2

const KernelTable* avx2_table() {
  using namespace avx2;
  static const KernelTable table{"avx2", matmul, gate_up, rms_norm, quantize, word_tile, softmax, append, attend};
  return &table;
}

}  // namespace maple
#endif
