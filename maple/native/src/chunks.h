// How the work of a step is cut into chunks that threads take one by one: large enough that handing out does not show, and
// at least as many as threads as far as the work goes. Threads are not bound to parts, so a slow core takes fewer.
#pragma once

#include <algorithm>
#include <cstddef>

#include "kernel_table.h"

namespace maple {

constexpr int kRouterParts = 4;  // column ranges of the router, which are added up in their order

inline int chunks_of(int n, int size) { return (n + size - 1) / size; }

// Of `n` things, at most `most` a chunk, in multiples of `step`: two chunks a thread.
inline int fair_chunk(int n, int threads, int most, int step = 1) {
  return std::max(step, std::min(most, n / (2 * threads)) / step * step);
}

// Blocks of a matrix: eight chunks a thread to even out a slow one, where they are four blocks or more.
inline int block_chunk(int blocks, size_t block_bytes, int threads) {
  const int fair = chunks_of(blocks, threads * 8);
  const int most = std::max(4, static_cast<int>((256u << 10) / block_bytes));
  return fair < 4 ? fair_chunk(blocks, threads, 4) : std::min(fair, most) / 4 * 4;
}

// Pairs of gate and up blocks of `experts` experts, `blocks` each; many tokens share what longer chunks prepare.
inline int gate_up_chunk(int experts, int blocks, int threads, bool many) {
  return fair_chunk(experts * blocks, threads, std::min(blocks, many ? kLookupBlocks : kLookupLeastBlocks), 2);
}

constexpr int kDownBlocks = 8;  // blocks of experts' outputs that a thread takes where there are enough

inline int down_chunk(int blocks, int threads, int tokens, bool many) {
  const int fair = fair_chunk(blocks, threads, kDownBlocks);
  if (tokens == 1 || fair < kDownBlocks) return fair;
  return std::clamp(blocks / (many ? threads : 2 * threads) / 4 * 4, kDownBlocks, many ? kLookupBlocks : 4 * kDownBlocks);
}

// Segments that one call of attention takes, of `segments` in each of `calls` that could run side by side.
inline int segment_chunk(int segments, int calls, int threads) {
  return calls >= 2 * threads ? segments : std::max(1, segments * calls / (2 * threads));
}

}  // namespace maple
