// The lock on calls: recursive, and free of anything that a call computed here does not touch anyway.
//
// Between two kernels of a network the caches hold neither libc's code nor a mutex of its own line. This one is two words
// in the line of State that every call reads; only who has to wait goes to the system.
#pragma once
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace edge_offload {

inline uintptr_t this_thread() {
#if defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 11 && (defined(__x86_64__) || defined(__aarch64__))
  return reinterpret_cast<uintptr_t>(__builtin_thread_pointer());
#else
  return (uintptr_t)pthread_self();
#endif
}

class CallLock {
 public:
  bool try_lock() {
    const auto me = this_thread();
    uintptr_t nobody = 0;
    if (owner_.load(std::memory_order_relaxed) != me && !owner_.compare_exchange_strong(nobody, me)) return false;
    ++depth_;
    return true;
  }
  void lock() { if (!try_lock()) wait(); }
  void unlock() {
    if (--depth_ > 0) return;
    owner_.store(0);  // who begins to wait sees it, or is seen here: both are sequentially consistent
    if (waiting_.load() > 0) wake();
  }

 private:
  std::atomic<uintptr_t> owner_{0};
  std::atomic<uint32_t> waiting_{0};
  uint32_t depth_ = 0;  // the owner's

  struct Bench { std::mutex lock; std::condition_variable freed; };
  static Bench& bench() { static auto* one = new Bench; return *one; }
  [[gnu::noinline, gnu::cold]] void wait() {
    std::unique_lock<std::mutex> hold(bench().lock);
    ++waiting_;
    bench().freed.wait(hold, [&] { return try_lock(); });
    --waiting_;
  }
  [[gnu::noinline, gnu::cold]] void wake() {
    std::lock_guard<std::mutex> hold(bench().lock);
    bench().freed.notify_one();
  }
};

}  // namespace edge_offload
