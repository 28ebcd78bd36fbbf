// The pool: its threads take chunks until there are none, then spin, then yield, then sleep.
#include "pool.h"

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define MAPLE_PAUSE() _mm_pause()
#elif defined(__aarch64__)
#define MAPLE_PAUSE() asm volatile("yield" ::: "memory")
#else
#define MAPLE_PAUSE() ((void)0)
#endif

namespace maple {

namespace {
constexpr int kPauses = 2000;   // tens of microseconds: longer than the gaps inside a step
constexpr int kYields = 2000;   // then let others run, and then sleep
}  // namespace

Pool::Pool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_.store(true);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

// Chunks until there are none; how many it ran.
int Pool::take_all(int thread) {
  int ran = 0;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while ((ticket & kMask) < ((ticket >> kBits) & kMask)) {
    ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);  // of this job, or of one that was published meanwhile
    if ((ticket & kMask) >= ((ticket >> kBits) & kMask)) break;
    // The job cannot end before this chunk is counted, so call_ and argument_ are those of the ticket.
    call_(argument_, static_cast<int>(ticket & kMask), thread);
    ++ran;
    ticket = ticket_.load(std::memory_order_relaxed);
  }
  return ran;
}

void Pool::dispatch(int chunks, Call call, const void* argument) {
  call_ = call;
  argument_ = argument;
  done_.store(0, std::memory_order_relaxed);
  ++generation_;
  ticket_.store(generation_ << (2 * kBits) | static_cast<uint64_t>(chunks) << kBits, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) {
    { std::lock_guard<std::mutex> lock(mutex_); }
    wake_.notify_all();
  }
  const int others = chunks - take_all(0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != others; ++spins) {
    if (spins < kPauses) MAPLE_PAUSE();
    else std::this_thread::yield();
  }
}

void Pool::work(int thread) {
  int idle = 0;
  while (!stop_.load(std::memory_order_relaxed)) {
    if (const int ran = take_all(thread)) {
      done_.fetch_add(ran, std::memory_order_release);
      idle = 0;
    } else if (++idle < kPauses) {
      MAPLE_PAUSE();
    } else if (idle < kPauses + kYields) {
      std::this_thread::yield();
    } else {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      wake_.wait(lock, [this] {
        const uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
        return stop_.load() || (ticket & kMask) < ((ticket >> kBits) & kMask);
      });
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
      idle = 0;
    }
  }
}

}  // namespace maple
