// Test mode of a device whose calls this process computes: work is delayed for as long as a GPU may delay it.
//
// Copies that do not block, and all work on other streams than the default one, are queued. They run when something waits for
// them: a stream, an event, the device or a read. Until then their targets hold poison, and a copy to the host has no effect
// before the host waits. Kernels of the default stream run at once, after work that was queued there. Freed memory is poisoned
// in the order of the stream that allocated it, unless `record_stream` reported another user. So a program that lacks a copy,
// an event or a wait computes with poison. Nothing of this runs if the mode is off.
#pragma once
#include "computing.h"

#include <deque>
#include <functional>
#include <map>

namespace edge_offload {

// Place in a stream, to wait for all work issued before it.
struct Mark {
  int64_t stream = 0;
  uint64_t place = 0;
  std::chrono::steady_clock::time_point reached{};
  bool passed = false;
};

class Streams {
 public:
  // Recursive lock on all queues; releases the GIL while it waits.
  class QueueLock {
   public:
    QueueLock() : hold_(lock(), std::try_to_lock) {
      if (hold_.owns_lock()) return;
      if (PyGILState_Check()) { py::gil_scoped_release release; hold_.lock(); } else hold_.lock();
    }

   private:
    static std::recursive_mutex& lock() { static auto* one = new std::recursive_mutex; return *one; }
    std::unique_lock<std::recursive_mutex> hold_;
  };

  static Streams& all() { static auto* one = new Streams; return *one; }
  static int64_t& current() { return current_stream(); }

  int64_t make() { QueueLock lock; return ++made_; }

  void put(int64_t stream, std::vector<Tensor> uses, std::function<void()> run) {
    QueueLock lock;
    auto& queue = queues_[stream];
    for (const auto& one : uses) ++used_[one.storage().unsafeGetStorageImpl()];
    queue.work.push_back({std::move(uses), std::move(run)});
    ++queue.issued;
    if (seed) run_ahead();
  }
  std::shared_ptr<Mark> mark(int64_t stream) {
    QueueLock lock;
    auto mark = std::make_shared<Mark>();
    mark->stream = stream;
    put(stream, {}, [mark] { mark->reached = std::chrono::steady_clock::now(); mark->passed = true; });
    mark->place = queues_[stream].issued;
    if (stream == 0 && queues_[0].work.size() == 1) run(0);  // its kernels have run already
    return mark;
  }
  // Makes a stream wait for a mark; waiting for the stream then includes the work before the mark.
  void follow(int64_t stream, const std::shared_ptr<Mark>& mark) {
    put(stream, {}, [this, stream, mark] {
      run(mark->stream, mark->place);
      auto& from = queues_[mark->stream].deferred;
      auto& to = queues_[stream].deferred;
      for (auto it = from.begin(); it != from.end();)
        if (it->place <= mark->place) { to.push_back({queues_[stream].done + 1, std::move(it->apply)}); it = from.erase(it); } else ++it;
    });
  }
  // Runs the work issued on a stream up to a place.
  void run(int64_t stream, uint64_t place = std::numeric_limits<uint64_t>::max()) {
    QueueLock lock;
    auto& queue = queues_[stream];
    const bool outer = !std::exchange(queue.running, true);
    struct Ran { Queue& queue; bool outer; ~Ran() { if (outer) queue.running = false; } } ran{queue, outer};
    while (queue.done < std::min(place, queue.issued) && !queue.work.empty()) {
      auto next = std::move(queue.work.front());
      queue.work.pop_front();
      const auto finish = [&] {
        ++queue.done;
        for (const auto& one : next.uses) {
          auto use = used_.find(one.storage().unsafeGetStorageImpl());
          if (--use->second == 0) used_.erase(use);
        }
      };
      try { BelowAll below; next.run(); } catch (...) { finish(); throw; }
      finish();
    }
  }
  // Waits on the host: copies to the host take effect.
  void wait(int64_t stream, uint64_t place = std::numeric_limits<uint64_t>::max()) {
    QueueLock lock;
    run(stream, place);
    auto& deferred = queues_[stream].deferred;
    while (!deferred.empty() && deferred.front().place <= place) { deferred.front().apply(); deferred.pop_front(); }
  }
  void wait_all() {
    QueueLock lock;
    std::vector<int64_t> numbers;
    for (const auto& item : queues_) numbers.push_back(item.first);
    for (auto number : numbers) wait(number);
  }
  // Defers an effect until the host waits for the present place of the stream.
  void defer(int64_t stream, std::function<void()> how) { queues_[stream].deferred.push_back({queues_[stream].done + 1, std::move(how)}); }
  uint32_t seed = 0;  // of random orders; 0: everything as late as possible
  bool used(const Tensor& t) { QueueLock lock; return t.has_storage() && used_.count(t.storage().unsafeGetStorageImpl()) > 0; }
  bool used(const c10::Storage& storage) { QueueLock lock; return used_.count(storage.unsafeGetStorageImpl()) > 0; }

 private:
  // Runs part of a random stream's work now and then: a GPU may choose any order that the program does not forbid.
  void run_ahead() {
    if (next() % 3 || queues_.empty()) return;
    auto it = queues_.begin();
    std::advance(it, next() % queues_.size());
    auto& queue = it->second;
    if (it->first == 0 || queue.running || queue.issued == queue.done) return;
    run(it->first, queue.done + 1 + next() % (queue.issued - queue.done));
  }
  uint32_t next() { return (seed = seed * 1664525u + 1013904223u) >> 16; }

  struct Work { std::vector<Tensor> uses; std::function<void()> run; };
  struct Deferred { uint64_t place; std::function<void()> apply; };
  struct Queue { std::deque<Work> work; std::deque<Deferred> deferred; uint64_t issued = 0, done = 0; bool running = false; };
  std::map<int64_t, Queue> queues_;
  std::unordered_map<c10::StorageImpl*, int> used_;  // host memory: number of queued items that read or write it
  int64_t made_ = 0;
};

// Fills a tensor with NaN, or with a number that is unlikely as a result.
inline void poison(const Tensor& host) {
  if (host.numel() == 0) return;
  const auto type = host.scalar_type();
  BelowAll below;
  if (at::isFloatingType(type) || at::isComplexType(type)) host.fill_(std::numeric_limits<double>::quiet_NaN());
  else if (type == at::kBool) host.fill_(true);
  else if (type == at::kByte) host.fill_(170);
  else host.fill_(type == at::kChar ? -107 : type == at::kShort ? -30567 : -2004318072);
}
inline void poison(const c10::Storage& memory) {
  const auto bytes = memory.nbytes();
  if (bytes) std::memset(const_cast<void*>(memory.data()), 0xFF, bytes);
}

// Poisons allocated device memory, now and in the order of the stream, where an earlier use may still write to it.
inline void new_memory(const c10::Storage& memory) {
  poison(memory);
  if (current_stream() == 0 || memory.nbytes() == 0) return;
  auto holder = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  Streams::all().put(current_stream(), {holder}, [holder] { poison(holder.storage()); });
}

// Poisons freed device memory in the order of its stream, which may use it again.
inline void let_go(Context* context) {
  Streams::QueueLock lock;
  if (context->crossed || !context->memory || !Streams::all().used(context->memory)) return;
  auto holder = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(context->memory), c10::DispatchKeySet(c10::DispatchKey::CPU), caffe2::TypeMeta::Make<uint8_t>());
  Streams::all().put(context->stream, {holder}, [holder] { poison(holder.storage()); });
}

// Host tensors for the operands of a queued call.
struct Hosts {
  std::vector<Tensor> uses;
  IValue of(const IValue& v) {
    if (v.isTensor()) return of(v.toTensor());
    if (v.isDevice()) return c10::Device(c10::DeviceType::CPU);
    if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const IValue& item : v.toListRef()) list.push_back(of(item.toTensor()));
      return list;
    }
    if (v.isList() && v.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<optional<Tensor>> list;
      for (const IValue& item : v.toListRef()) list.push_back(item.isTensor() ? optional<Tensor>(of(item.toTensor())) : nullopt);
      return list;
    }
    return v;
  }
  Tensor of(const Tensor& t) {
    if (!t.defined()) return t;
    if (!on_device(t)) return t.clone();  // torch copies a host number when the call is issued
    uses.push_back(host_of(t));
    return uses.back();
  }
};

inline void run_on_host(const c10::OperatorHandle& op, Stack* hosts) {
  in_host_memory([&] { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), hosts); });
}

// Queues a call. Returns false if its results are unknown before it has run; then all calls before it have run.
inline bool queued(const c10::OperatorHandle& op, const Facts& facts, Stack* stack) {
  TORCH_CHECK(!state().lost, "CUDA error: unspecified launch failure (the device was lost on purpose; edge_offload)");
  const int64_t stream = Streams::current();
  Streams::QueueLock lock;
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const bool sized = schema.overload_name().find("out") == std::string::npos && schema.name() != "aten::set_" && schema.name() != "aten::resize_";
  if (stream == 0 || facts.random || facts.statistics >= 0 || !sized || has_dynamic_results(op, *stack, first)) {
    Streams::all().run(stream);
    return false;
  }
  Hosts hosts;
  Stack operands;
  for (size_t i = first; i < stack->size(); ++i) operands.push_back(hosts.of((*stack)[i]));
  for (const auto& one : hosts.uses) if (one.is_conj() || one.is_neg()) { Streams::all().run(stream); return false; }
  if (facts.writes) {  // sizes do not change, and the results are the written operands
    c10::SmallVector<IValue, 2> written;
    for (auto position : facts.written) written.push_back((*stack)[first + position]);
    if (written.size() != schema.returns().size()) { Streams::all().run(stream); return false; }
    Streams::all().put(stream, hosts.uses, [op, operands] { Stack mine = operands; run_on_host(op, &mine); });
    torch::jit::drop(*stack, schema.arguments().size());
    for (auto& one : written) stack->push_back(std::move(one));
    return true;
  }
  Stack made(stack->begin() + first, stack->end());
  Computing computing(op, facts);
  try { computing.run(&made, 0); } catch (const std::exception&) {  // a kernel may refuse poison
    Streams::all().run(stream);
    return false;
  }
  computing.give(&made, 0, false, nullptr);
  std::vector<Tensor> results;
  for (const auto& v : made) {
    if (v.isTensor()) results.push_back(v.toTensor());
    else for (const IValue& item : v.toListRef()) results.push_back(item.toTensor());
  }
  auto uses = hosts.uses;
  for (auto& one : results) {
    if (!one.defined()) continue;
    one = host_of(one);
    for (const auto& operand : hosts.uses)
      if (operand.storage().unsafeGetStorageImpl() == one.storage().unsafeGetStorageImpl()) { one = Tensor(); break; }  // a view
    if (one.defined()) { poison(one); uses.push_back(one); }
  }
  Streams::all().put(stream, uses, [op, operands, results] {
    Stack mine = operands;
    run_on_host(op, &mine);
    size_t i = 0;
    for (const auto& v : mine) {
      if (v.isTensor()) { if (results[i].defined()) copy_on_host(results[i], v.toTensor()); ++i; }
      else for (const IValue& item : v.toListRef()) { if (results[i].defined()) copy_on_host(results[i], item.toTensor()); ++i; }
    }
  });
  torch::jit::drop(*stack, schema.arguments().size());
  for (auto& v : made) stack->push_back(std::move(v));
  return true;
}

inline bool is_locked(const Tensor& host) { return at::detail::getCUDAHooks().isPinnedPtr(host.storage().data()); }

// Queues a copy to the device. Page-locked host memory is read when the copy runs, other memory is read now.
inline void upload_later(const Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(!state().lost, "CUDA error: unspecified launch failure (the device was lost on purpose; edge_offload)");
  Streams::QueueLock lock;
  const int64_t stream = Streams::current();
  const Tensor to = host_of(self), from = non_blocking && is_locked(source) ? source : source.clone();
  if (non_blocking && !Streams::all().used(to)) poison(to);
  Streams::all().put(stream, {to, from}, [to, from] { copy_on_host(to, from); });
  if (!non_blocking) Streams::all().wait(stream);
}
inline void download_later(const Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(!state().lost, "CUDA error: unspecified launch failure (the device was lost on purpose; edge_offload)");
  Streams::QueueLock lock;
  const int64_t stream = Streams::current();
  const Tensor from = host_of(source);
  if (!non_blocking) { Streams::all().wait(stream); copy_on_host(self, from); return; }
  if (!Streams::all().used(self)) poison(self);
  Streams::all().put(stream, {self, from}, [stream, self, from] {
    const Tensor taken = from.clone();
    Streams::all().defer(stream, [self, taken] { copy_on_host(self, taken); });
  });
}

}  // namespace edge_offload
