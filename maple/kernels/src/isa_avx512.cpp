#include "kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx512 {
#include "simd_avx512.h"
#include "kernels.inc"
}  // namespace avx512

const KernelTable* avx512_table() {
  using namespace avx512;
  static const KernelTable table{"avx512", matmul, gate_up, rms_norm, quantize, word_tile, softmax, append, attend};
  return &table;
}

}  // namespace maple
#endif
