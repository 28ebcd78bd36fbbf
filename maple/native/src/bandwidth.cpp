// How fast this machine reads memory, for the benchmarks.
#include <atomic>
#include <thread>
#include <vector>

#include "maple_kernels.h"

namespace {

constexpr int64_t kPiece = 4 << 20;

uint64_t read_words(const uint64_t* p, int64_t words) {
  uint64_t sums[16] = {};
  for (int64_t i = 0; i + 16 <= words; i += 16)
    for (int j = 0; j < 16; ++j) sums[j] += p[i + j];
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

extern "C" uint64_t maple_read_all(const void* data, int64_t bytes, int32_t threads) {
  std::atomic<int64_t> next{0};
  std::atomic<uint64_t> total{0};
  auto work = [&] {
    for (int64_t at = next.fetch_add(kPiece); at < bytes; at = next.fetch_add(kPiece))
      total += read_words(reinterpret_cast<const uint64_t*>(static_cast<const char*>(data) + at),
                          (bytes - at < kPiece ? bytes - at : kPiece) / 8);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
  return total;
}
