// Handing the pending segment to Python, which has it executed.
#pragma once
#include "segment.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

namespace edge_offload {

inline uint32_t identify(const Segment& segment, bool* fresh) {
  auto& s = state();
  const Bytes128 hash{segment.hash[0], segment.hash[1]};
  auto range = s.segments.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it)
    if (s.known[it->second]->words == segment.words) { *fresh = false; return it->second; }
  const uint32_t id = s.known.size();
  s.known.push_back(std::make_unique<Known>(Known{id, segment.words}));
  s.segments.emplace(hash, id);
  *fresh = true;
  return id;
}

// The handler is running: what it does with host tensors is no part of what the program traces or overrides.
class Busy {
 public:
  Busy() : tracing_(torch::jit::tracer::getTracingState()), functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    state().busy = true;
    if (tracing_) torch::jit::tracer::setTracingState(nullptr);
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~Busy() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_);
    if (tracing_) {  // torch's own kernels may have excluded the key, and switching tracing on then asserts
      const bool excluded = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Tracer);
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, false);
      torch::jit::tracer::setTracingState(std::move(tracing_));
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, excluded);
    }
    state().busy = false;
  }

 private:
  std::shared_ptr<torch::jit::tracer::TracingState> tracing_;
  at::impl::TorchFunctionDisabledState functions_;
};

// The pending segment, which ends here, and the storages that have died.
struct Ended {
  Segment segment;
  std::vector<Death> deaths;
  uint64_t epoch, base;
  uint32_t id;
  bool fresh = false;

  Ended() {
    auto& s = state();
    segment = std::move(s.pending);
    s.pending = Segment();
    s.pending.words.reserve(std::min(segment.words.size(), kFlushWords));  // the next one is often as long
    epoch = s.epoch++;
    base = segment.words.empty() ? s.next_id.load() : segment.base;
    id = identify(segment, &fresh);
    { std::lock_guard<std::mutex> hold(s.deaths); deaths.swap(s.dead); }
    s.room.untold = 0;
    ++s.count_flushes;
  }
};
struct Told {  // the same for Python, which must hold the GIL
  py::list dead, freed, live, payloads;
  py::bytes numbers;

  explicit Told(const Ended& ended)
      : numbers(reinterpret_cast<const char*>(ended.segment.numbers.data()), ended.segment.numbers.size() * sizeof(Number)) {
    for (const auto& death : ended.deaths) {
      if (death.fresh && death.epoch == ended.epoch) dead.append(death.canonical); else freed.append(death.id);
    }
    for (auto value : ended.segment.live) live.append(value);
    for (auto& payload : ended.segment.payloads) payloads.append(payload.defined() ? py::object(py::cast(payload)) : py::object(py::none()));
  }
};

// Runs `use(result)` under the GIL on what the handler returned.
template <typename Use>
inline void flush(Reason reason, Use use) {
  auto& s = state();
  Ended ended;
  py::gil_scoped_acquire gil;
  Told report(ended);
  Busy busy;
  py::object result;
  try {
    result = py::reinterpret_borrow<py::object>(s.handler).attr("flush")(static_cast<int>(reason), s.generation, ended.id, ended.fresh,
        ended.base, report.live, report.dead, report.freed, report.numbers, report.payloads, ended.segment.calls);
  } catch (...) {
    s.compared.recent.clear();  // some of it may not be there
    throw;
  }
  use(result);
}
inline void flush(Reason reason) { flush(reason, [](const py::object&) {}); }

// Room for so many bytes, looked for before a call that makes them is noted: what the server has not heard to be dropped is
// told first where it is in the way.
inline void check_room(int64_t bytes) {
  auto& s = state();
  const int64_t in_use = s.taken - s.given;
  if (bytes > s.mark - in_use && bytes > s.room.limit - in_use) s.room.refuse(bytes, in_use);
  if (!s.here && bytes > s.room.limit - in_use - s.room.untold && !s.pending.words.empty()) flush(kAsync);
}

inline void announce_if_complete() {
  auto& s = state();
  if (s.expected < 0) return;
  const auto& announced = *s.known[s.expected];
  const auto& words = s.pending.words;
  if (s.pending.payloads.size() != s.expected_payloads || words.size() > announced.words.size() ||
      !std::equal(words.begin(), words.end(), announced.words.begin()))
    return;
  s.expected = -1;
  py::gil_scoped_acquire gil;
  py::list live, payloads;
  for (auto value : s.pending.live) live.append(value);
  for (auto& payload : s.pending.payloads) payloads.append(py::cast(payload));
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("announce")(announced.id, s.pending.base, live, payloads);
}

inline void after_call() {
  auto& s = state();
  if (s.per_call) flush(kCall);
  else if (s.pending.payload_bytes > kFlushBytes || s.pending.words.size() > kFlushWords) flush(kAsync);
}

}  // namespace edge_offload
