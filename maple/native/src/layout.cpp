// Sizes of the packed layout (kernel_table.h describes it).
#include <cmath>
#include <cstring>

#include "kernel_table.h"
#include "maple_kernels.h"

namespace maple {

int padded_columns(int32_t kind, int cols) {
  const int unit = kind == kAffine4 ? 2 * kGroup : 16;
  return (cols + unit - 1) / unit * unit;
}

size_t affine4_row_bytes(int cols) {
  const size_t groups = static_cast<size_t>(padded_columns(kAffine4, cols)) / kGroup;
  return (groups * (4 + kGroup / 2) + 63) / 64 * 64;
}

size_t matrix_block_bytes(int32_t kind, int cols) {
  const size_t k = static_cast<size_t>(padded_columns(kind, cols));
  switch (kind) {
    case kTernary: return 64 + k * 4;
    case kAffine4: return kBlockRows * affine4_row_bytes(cols);
    case kInt8: return 64 + k * 16;
    case kBf16: return k * 32;
    default: return k * 64;
  }
}

bool affine4_units(const Matrix& matrix, int rows, float* units) {
  const int groups = matrix.padded_cols / kGroup;
  for (int r = 0; r < rows; ++r) {
    const uint8_t* affine = matrix.blocks + r / kBlockRows * matrix.block_bytes + r % kBlockRows * (matrix.block_bytes / kBlockRows);
    float largest = 0.0f;
    for (int g = 0; g < groups; ++g) {
      uint32_t both;
      std::memcpy(&both, affine + 4 * g, 4);
      const uint32_t bits[2] = {both << 16, both & 0xffff0000u};
      float pair[2];
      std::memcpy(pair, bits, 8);
      const float ends[2] = {std::fabs(pair[1]), std::fabs(15.0f * pair[0] + pair[1])};
      for (const float end : ends)
        if (!(end <= largest)) largest = end;
    }
    if (!(largest < 1e30f)) return false;
    // 4032: the two roundings to bf16 may lift a weight by 2^-7, and 4095 steps are what the sums have room for.
    int exponent = 0;
    std::frexp(largest / 4032.0f, &exponent);
    units[r] = largest < 1e-30f ? 12582912.0f : std::ldexp(12582912.0f, exponent);
  }
  return true;
}

}  // namespace maple

extern "C" int64_t maple_matrix_bytes(int32_t kind, int32_t rows, int32_t cols) {
  if (kind < maple::kTernary || kind > maple::kF32 || rows < 1 || cols < 1) return -1;
  const int64_t blocks = (rows + maple::kBlockRows - 1) / maple::kBlockRows;
  return blocks * static_cast<int64_t>(maple::matrix_block_bytes(kind, cols));
}
