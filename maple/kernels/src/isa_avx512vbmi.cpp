#define MAPLE_LOOKUP
#include "kernel_table.h"
#if defined(__x86_64__)
#include <immintrin.h>

namespace maple {
namespace avx512vbmi {
#include "simd_avx512.h"
#include "kernels.inc"
}  // namespace avx512vbmi

const KernelTable* avx512vbmi_table() {
  using namespace avx512vbmi;
  static const KernelTable table{"avx512vbmi", matmul, gate_up, rms_norm, quantize, word_tile, softmax, append, attend};
  return &table;
}

}  // namespace maple
#endif
