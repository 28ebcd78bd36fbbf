// Sizes of the packed layout (kernel_table.h describes it).
#include "kernel_table.h"
#include "maple_kernels.h"

namespace maple {

int padded_columns(int32_t kind, int cols) {
  const int unit = kind == kAffine4 ? kGroup : 16;
  return (cols + unit - 1) / unit * unit;
}

size_t matrix_block_bytes(int32_t kind, int cols) {
  const size_t k = static_cast<size_t>(padded_columns(kind, cols));
  switch (kind) {
    case kTernary: return 64 + k * 4;
    case kAffine4: return k / kGroup * 64 + k * 8;
    case kInt8: return 64 + k * 16;
    case kBf16: return k * 32;
    default: return k * 64;
  }
}

}  // namespace maple

extern "C" int64_t maple_matrix_bytes(int32_t kind, int32_t rows, int32_t cols) {
  if (kind < maple::kTernary || kind > maple::kF32 || rows < 1 || cols < 1) return -1;
  const int64_t blocks = (rows + maple::kBlockRows - 1) / maple::kBlockRows;
  return blocks * static_cast<int64_t>(maple::matrix_block_bytes(kind, cols));
}
