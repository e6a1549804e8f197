// Recursive lock on calls, which costs no cache miss if it is free.
//
// A kernel evicts libc's code and any mutex from the caches. This lock is two machine words in the cache line of CallState
// that every call reads. Only a thread that has to wait makes a system call.
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
    owner_.store(0);  // sequentially consistent: either a new waiter sees this store, or the next line sees the waiter
    if (waiting_.load() > 0) wake();
  }

 private:
  std::atomic<uintptr_t> owner_{0};
  std::atomic<uint32_t> waiting_{0};
  uint32_t depth_ = 0;  // of the owner's nested locks

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
