// A pool of threads that hand out one numbered range of chunks at a time.
//
// The caller works too and waits only for chunks that another thread has already taken, so that a descheduled or sleeping
// worker costs the chunk in its hands and nothing more. Idle threads pause, then yield, then sleep on a futex.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace maple {

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls run(chunk, thread) for every chunk in [0, chunks), in the calling thread (thread 0) and the workers.
  template <class Run>
  void parallel(int chunks, const Run& run) {
    if (chunks <= 1 || workers_.empty()) {
      for (int i = 0; i < chunks; ++i) run(i, 0);
      return;
    }
    dispatch(chunks, [](const void* f, int chunk, int thread) { (*static_cast<const Run*>(f))(chunk, thread); }, &run);
  }

 private:
  using Call = void (*)(const void*, int, int);
  // One word says everything a worker needs before it takes a chunk, so that a late worker can never take a chunk of a
  // finished job: generation (24 bits), number of chunks (20 bits), next chunk (20 bits).
  static constexpr int kBits = 20;
  static constexpr uint64_t kMask = (1u << kBits) - 1;

  void dispatch(int chunks, Call call, const void* argument);
  int take_all(int thread);
  void work(int thread);

  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int> done_{0};  // chunks that workers ran, counted when they find no more
  alignas(64) Call call_ = nullptr;
  const void* argument_ = nullptr;
  uint64_t generation_ = 0;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace maple
