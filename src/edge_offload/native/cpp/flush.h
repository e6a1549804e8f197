// Passes the pending segment to Python, which has it executed.
#pragma once
#include "segment.h"

#include <ATen/PythonTorchFunctionTLS.h>
#include <torch/csrc/jit/frontend/tracer.h>

namespace edge_offload {

inline uint32_t identify(const Segment& segment, bool* fresh) {
  auto& s = state();
  const Bytes128 hash{segment.hash[0], segment.hash[1]};
  auto range = s.tables.segments.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it)
    if (s.tables.defined_segments[it->second]->code == segment.code) { *fresh = false; return it->second; }
  const uint32_t id = s.tables.defined_segments.size();
  s.tables.defined_segments.push_back(std::make_unique<DefinedSegment>(DefinedSegment{id, segment.code}));
  s.tables.segments.emplace(hash, id);
  *fresh = true;
  return id;
}

// Scope in which the handler runs: its work on host tensors is neither traced nor overridden as the program's.
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

// Ends the pending segment, and takes the list of dropped storages.
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
    s.pending.code.reserve(std::min(segment.code.size(), kFlushLength));  // the next segment is often as long
    epoch = s.epoch++;
    base = segment.code.empty() ? s.next_id.load() : segment.base;
    id = identify(segment, &fresh);
    { std::lock_guard<std::mutex> hold(s.drops.deaths); deaths.swap(s.drops.dead); }
    s.room.unreported = 0;
    ++s.count_flushes;
  }
};
struct SegmentReport {  // an ended segment as Python objects; the caller holds the GIL
  py::list dead, freed, live, payloads;
  py::bytes numbers;

  explicit SegmentReport(const Ended& ended)
      : numbers(reinterpret_cast<const char*>(ended.segment.numbers.data()), ended.segment.numbers.size() * sizeof(Number)) {
    for (const auto& death : ended.deaths) {
      if (death.fresh && death.epoch == ended.epoch) dead.append(death.canonical); else freed.append(death.id);
    }
    for (auto value : ended.segment.live) live.append(value);
    for (auto& payload : ended.segment.payloads) payloads.append(payload.defined() ? py::object(py::cast(payload)) : py::object(py::none()));
  }
};

// Calls the handler, and runs `use(result)` on its result under the GIL.
template <typename Use>
inline void flush(Reason reason, Use use) {
  auto& s = state();
  Ended ended;
  py::gil_scoped_acquire gil;
  SegmentReport report(ended);
  Busy busy;
  py::object result;
  try {
    result = py::reinterpret_borrow<py::object>(s.handler).attr("flush")(static_cast<int>(reason), s.tables.generation, ended.id, ended.fresh,
        ended.base, report.live, report.dead, report.freed, report.numbers, report.payloads, ended.segment.calls);
  } catch (...) {
    s.inference.compared.recent.clear();  // some of these storages may not exist on the server
    throw;
  }
  use(result);
}
inline void flush(Reason reason) { flush(reason, [](const py::object&) {}); }

// Checks that there is room for so many bytes, before a call that makes them is noted. If needed, storages that were
// dropped are reported to the server first.
inline void check_room(int64_t bytes) {
  auto& s = state();
  const int64_t in_use = s.taken - s.given;
  if (bytes > s.mark - in_use && bytes > s.room.limit - in_use) s.room.refuse(bytes, in_use);
  if (!s.local && bytes > s.room.limit - in_use - s.room.unreported && !s.pending.code.empty()) flush(kAsync);
}

inline void announce_if_complete() {
  auto& s = state();
  if (s.tables.expected < 0) return;
  const auto& announced = *s.tables.defined_segments[s.tables.expected];
  const auto& code = s.pending.code;
  if (s.pending.payloads.size() != s.tables.expected_payloads || code.size() > announced.code.size() ||
      !std::equal(code.begin(), code.end(), announced.code.begin()))
    return;
  s.tables.expected = -1;
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
  else if (s.pending.payload_bytes > kFlushBytes || s.pending.code.size() > kFlushLength) flush(kAsync);
}

}  // namespace edge_offload
