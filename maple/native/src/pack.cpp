// Row-major weights to the packed layout.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

#include "failure.h"
#include "kernel_table.h"
#include "maple_kernels.h"

namespace maple {
namespace {

float bf16_at(const void* base, size_t index) {
  uint16_t half;
  std::memcpy(&half, static_cast<const char*>(base) + 2 * index, 2);
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

uint32_t word_at(const void* base, size_t index) {
  uint32_t word;
  std::memcpy(&word, static_cast<const char*>(base) + 4 * index, 4);
  return word;
}

struct Shape {
  int32_t kind, count, rows, cols;
  int blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
};

// What may be wrong with a row; the lowest row that fails is reported whatever the number of threads.
struct Problem {
  std::atomic<int64_t> row{INT64_MAX};
  void report(int64_t at) {
    int64_t seen = row.load();
    while (at < seen && !row.compare_exchange_weak(seen, at)) {
    }
  }
};

// Runs pack(matrix, block, destination) for all blocks; destination is zeroed.
template <class PackBlock>
int pack_blocks(const Shape& shape, const maple_target& target, int threads, char* error, const char* complaint,
                const PackBlock& pack) {
  const size_t block_bytes = matrix_block_bytes(shape.kind, shape.cols);
  const int blocks = shape.blocks();
  if (!target.out || shape.count < 1 || shape.rows < 1 || shape.cols < 1 || target.block_step < 1 || target.first_block < 0)
    return fail(error, "packing: empty shape or no destination");
  if (reinterpret_cast<uintptr_t>(target.out) % 64) return fail(error, "packing: destination is not 64-byte aligned");
  const int64_t last = static_cast<int64_t>(shape.count - 1) * target.matrix_blocks + target.first_block +
                       static_cast<int64_t>(blocks - 1) * target.block_step;
  if (last >= target.bytes / static_cast<int64_t>(block_bytes)) return fail(error, "packing: destination too small");
  Problem problem;
  std::atomic<int64_t> next{0};
  const int64_t total = static_cast<int64_t>(shape.count) * blocks;
  auto work = [&] {
    for (int64_t i = next.fetch_add(1); i < total; i = next.fetch_add(1)) {
      const int64_t m = i / blocks, b = i % blocks;
      uint8_t* to = static_cast<uint8_t*>(target.out) +
                    static_cast<size_t>(m * target.matrix_blocks + target.first_block + b * target.block_step) * block_bytes;
      std::memset(to, 0, block_bytes);
      pack(m, static_cast<int>(b), to, problem);
    }
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads && i < total; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  const int64_t row = problem.row.load();
  return row == INT64_MAX ? 0 : fail(error, "row %lld: %s", static_cast<long long>(row), complaint);
}

constexpr uint32_t kZeros = 0x55555555;  // sixteen codes of 1: weight 0

// Code k of the source is at bit 2k; ours is column 4p + b at bit 8b + 2p: a 4 x 4 transpose of codes.
uint32_t transpose_codes(uint32_t w) {
  uint32_t t = (w ^ (w >> 6)) & 0x00cc00cc;
  w ^= t ^ (t << 6);
  t = (w ^ (w >> 12)) & 0x0000f0f0;
  return w ^ t ^ (t << 12);
}

// Code k of the source is at bit 4k; ours is column 4p + b at bit 8b + 4p: four pairs of nibbles.
uint32_t pair_codes(uint32_t w) {
  uint32_t out = 0;
  for (int b = 0; b < 4; ++b) out |= (w >> (4 * b) & 15) << (8 * b) | (w >> (16 + 4 * b) & 15) << (8 * b + 4);
  return out;
}

void fill_ternary(uint8_t* to, int cols) {
  auto* words = reinterpret_cast<uint32_t*>(to + 64);
  std::fill(words, words + padded_columns(kTernary, cols), kZeros);
}

// A row of bf16 values to codes, one a byte; false unless each is 0 or of magnitude `alpha`. Without a branch, so that the
// compiler takes many values at once: packing then waits for the disk.
bool encode_ternary(const uint16_t* x, int n, uint16_t alpha, uint8_t* codes) {
  uint16_t wrong = 0;
  for (int k = 0; k < n; ++k) {
    const uint16_t magnitude = x[k] & 0x7fff, some = magnitude != 0, negative = x[k] >> 15;
    wrong |= static_cast<uint16_t>(some & (magnitude != alpha));
    codes[k] = static_cast<uint8_t>(1 + some - 2 * (some & negative));
  }
  return !wrong;
}

// Sixteen codes to the word of our order: code 4p + b at bit 8b + 2p.
uint32_t word_of(const uint8_t* codes) {
  return word_at(codes, 0) | word_at(codes, 1) << 2 | word_at(codes, 2) << 4 | word_at(codes, 3) << 6;
}

}  // namespace
}  // namespace maple

using namespace maple;

extern "C" {

int maple_pack_codes2(const void* words, const void* alpha, int32_t count, int32_t rows, int32_t cols,
                      const maple_target* target, int32_t threads, char* error) {
  if (cols % 16) return fail(error, "packing: %d columns are not a whole number of words", cols);
  const Shape shape{kTernary, count, rows, cols};
  const size_t row_words = static_cast<size_t>(cols) / 16;
  return pack_blocks(shape, *target, threads, error, "a code of 3, which no ternary weight has, or a scale that is not finite",
                     [&](int64_t m, int block, uint8_t* to, Problem& problem) {
    fill_ternary(to, cols);
    auto* scales = reinterpret_cast<float*>(to);
    auto* out = reinterpret_cast<uint32_t*>(to + 64);
    for (int r = 0; r < kBlockRows && block * kBlockRows + r < rows; ++r) {
      const size_t row = static_cast<size_t>(m) * rows + block * kBlockRows + r;
      scales[r] = bf16_at(alpha, row);
      uint32_t threes = 0;
      for (size_t k = 0; k < row_words; ++k) {
        const uint32_t word = word_at(words, row * row_words + k);
        threes |= word & (word >> 1) & 0x55555555;
        out[k * kBlockRows + r] = transpose_codes(word);
      }
      if (threes || !std::isfinite(scales[r])) problem.report(static_cast<int64_t>(row));
    }
  });
}

int maple_pack_ternary(const void* source, int32_t count, int32_t rows, int32_t cols, const maple_target* target,
                       int32_t threads, char* error) {
  const Shape shape{kTernary, count, rows, cols};
  return pack_blocks(shape, *target, threads, error, "not of the form -a, 0, a with one finite a",
                     [&](int64_t m, int block, uint8_t* to, Problem& problem) {
    fill_ternary(to, cols);
    auto* scales = reinterpret_cast<float*>(to);
    auto* out = reinterpret_cast<uint32_t*>(to + 64);
    std::vector<uint16_t> values(static_cast<size_t>(cols));
    std::vector<uint8_t> codes(static_cast<size_t>(padded_columns(kTernary, cols)), 1);
    for (int r = 0; r < kBlockRows && block * kBlockRows + r < rows; ++r) {
      const size_t row = static_cast<size_t>(m) * rows + block * kBlockRows + r;
      std::memcpy(values.data(), static_cast<const char*>(source) + row * cols * 2, static_cast<size_t>(cols) * 2);
      uint16_t largest = 0;
      for (int k = 0; k < cols; ++k) largest = std::max<uint16_t>(largest, values[k] & 0x7fff);
      const bool good = largest < 0x7f80 && encode_ternary(values.data(), cols, largest, codes.data());
      for (int k = 0; k < cols; k += 16) out[k / 16 * kBlockRows + r] = word_of(codes.data() + k);
      scales[r] = bf16_at(&largest, 0);
      if (!good) problem.report(static_cast<int64_t>(row));
    }
  });
}

int maple_pack_affine4(const void* words, const void* scales, const void* biases, int32_t rows, int32_t cols,
                       const maple_target* target, int32_t threads, char* error) {
  if (cols % kGroup) return fail(error, "packing: %d columns are not a whole number of groups of %d", cols, kGroup);
  const Shape shape{kAffine4, 1, rows, cols};
  const size_t groups = static_cast<size_t>(cols) / kGroup;
  constexpr size_t kWords = kGroup / 8;  // of a row in a group
  return pack_blocks(shape, *target, threads, error, "a scale or bias that is not finite",
                     [&](int64_t, int block, uint8_t* to, Problem& problem) {
    auto* out = reinterpret_cast<uint32_t*>(to);
    for (int r = 0; r < kBlockRows && block * kBlockRows + r < rows; ++r) {
      const size_t row = static_cast<size_t>(block) * kBlockRows + r;
      for (size_t g = 0; g < groups; ++g) {
        const size_t at = row * groups + g;
        uint32_t* group = out + g * (1 + kWords) * kBlockRows + r;
        std::memcpy(group, static_cast<const char*>(scales) + 2 * at, 2);
        std::memcpy(reinterpret_cast<char*>(group) + 2, static_cast<const char*>(biases) + 2 * at, 2);
        if (!std::isfinite(bf16_at(scales, at)) || !std::isfinite(bf16_at(biases, at))) problem.report(static_cast<int64_t>(row));
        for (size_t i = 0; i < kWords; ++i) group[(1 + i) * kBlockRows] = pair_codes(word_at(words, at * kWords + i));
      }
    }
  });
}

int maple_pack_dense(const void* source, int32_t source_is_f32, int32_t kind, int32_t rows, int32_t cols,
                     const maple_target* target, int32_t threads, char* error) {
  if (kind != kInt8 && kind != kBf16 && kind != kF32) return fail(error, "packing: kind %d is not dense", kind);
  if (source_is_f32 && kind != kF32) return fail(error, "packing: f32 rows are kept as f32");
  const Shape shape{kind, 1, rows, cols};
  return pack_blocks(shape, *target, threads, error, "a weight that is not finite",
                     [&](int64_t, int block, uint8_t* to, Problem& problem) {
    const int padded = padded_columns(kind, cols);
    if (kind == kInt8) std::memset(to + 64, 128, static_cast<size_t>(padded) * kBlockRows);
    for (int r = 0; r < kBlockRows && block * kBlockRows + r < rows; ++r) {
      const size_t row = static_cast<size_t>(block) * kBlockRows + r;
      float largest = 0.0f;
      bool finite = true;
      auto value = [&](int k) {
        float x;
        if (!source_is_f32) return bf16_at(source, row * cols + k);
        std::memcpy(&x, static_cast<const char*>(source) + 4 * (row * cols + k), 4);
        return x;
      };
      for (int k = 0; k < cols; ++k) {
        const float x = value(k);
        finite &= std::isfinite(x);
        largest = std::max(largest, std::fabs(x));
      }
      if (!finite) {
        problem.report(static_cast<int64_t>(row));
        continue;
      }
      const float scale = largest / 127.0f, inverse = largest > 1e-30f ? 127.0f / largest : 0.0f;
      if (kind == kInt8) std::memcpy(to + 4 * r, &scale, 4);
      for (int k = 0; k < cols; ++k) {
        const float x = value(k);
        if (kind == kInt8) {
          to[64 + (k / 4 * kBlockRows + r) * 4 + k % 4] = static_cast<uint8_t>(128 + std::lrintf(x * inverse));
        } else if (kind == kBf16) {
          std::memcpy(to + (k / 2 * kBlockRows + r) * 4 + k % 2 * 2, static_cast<const char*>(source) + 2 * (row * cols + k), 2);
        } else {
          std::memcpy(to + (static_cast<size_t>(k) * kBlockRows + r) * 4, &x, 4);
        }
      }
    }
  });
}
}
