// Notes calls that this process computes, so that the handler can recognise repeated inferences and choose which to await.
// Calls of an awaited inference are only noted, as for a server. At its read, the handler has robot and server compute it
// together. If the program deviates, the calls up to there are computed at once.
#pragma once
#include "streams.h"

namespace edge_offload {

enum class Fate { kCompute, kNoted, kWait };  // compute it, not noted; compute it, noted; noted, to be computed later

// Drops the pending segment, which cannot be repeated, and notes nothing until the next read.
inline void skip_segment(const char* why) {
  auto& s = state();
  s.pending = Segment();
  ++s.epoch;
  s.skipping = true;
  s.reporting.skip_reason = why;
}
// Ends waiting because the program deviated: computes the calls up to here.
inline void leave() {
  auto& s = state();
  s.reporting.waiting = false;
  s.skipping = true;
  s.reporting.skip_reason = "";
  flush(kBarrier);
}
inline void give_up(const char* why) {
  if (state().reporting.waiting) leave();
  else if (!state().skipping) skip_segment(why);
}

// Returns the seconds since the start of a segment.
inline double seconds_of(const Segment& segment) {
  return segment.code.empty() ? 0.0 : std::chrono::duration<double>(std::chrono::steady_clock::now() - segment.started_at).count();
}
// Ends the segment before a call whose sizes depend on data, which this process computes. If it has uploads, the segment may
// be most of a repeated inference.
inline void cut() {
  auto& s = state();
  const char* const why = "has sizes that depend on data";
  if (s.pending.payloads.empty()) { give_up(why); return; }
  if (s.reporting.waiting) {
    const auto& code = s.pending.code;
    if (std::none_of(s.reporting.following.begin(), s.reporting.following.end(), [&](uint32_t id) { return s.tables.defined_segments.at(id)->code.size() == code.size(); })) {
      leave();
      return;
    }
    s.reporting.waiting = false;
    flush(kCut);
  } else {
    const double seconds = seconds_of(s.pending);
    std::vector<uint64_t> written;
    written.swap(s.reporting.written);
    Ended ended;
    py::gil_scoped_acquire gil;
    SegmentReport report(ended);
    Busy busy;
    const bool learns = py::cast<bool>(py::reinterpret_borrow<py::object>(s.handler).attr("cut")(
        s.tables.generation, ended.id, ended.base, report.live, report.dead, report.freed, report.numbers, report.payloads, seconds, written));
    if (learns) s.reporting.cut = ended.epoch;
  }
  s.skipping = true;
  s.reporting.skip_reason = "";
}
// Reports to the handler which storages of the cut segment the program has used.
inline void tell_uses() {
  auto& s = state();
  s.reporting.cut = 0;
  s.reporting.cut_read = false;
  std::vector<Use> uses;
  uses.swap(s.reporting.uses);
  py::gil_scoped_acquire gil;
  py::list items;
  for (const auto& use : uses) items.append(py::make_tuple(use.id, use.canonical, use.entry, use.value.defined() ? py::object(py::cast(use.value)) : py::object(py::none())));
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("used")(items);
}

// Returns those of `segments` whose next call is this one.
inline std::vector<uint32_t> matching_segments(const std::vector<uint32_t>& segments, const Entry& entry, const Key& key) {
  auto& s = state();
  const size_t at = s.pending.code.size();
  std::vector<uint32_t> matching;
  if (segments.empty() || !entry.cached) return matching;
  c10::SmallVector<uint32_t, 12> next{entry.index};
  c10::SmallVector<c10::StorageImpl*, 8> met;
  for (auto* storage : key.references) {
    auto* context = context_of(storage);
    if (context->epoch == s.epoch) { next.push_back(context->canonical); continue; }
    const auto place = std::find(met.begin(), met.end(), storage) - met.begin();
    if (place == static_cast<std::ptrdiff_t>(met.size())) met.push_back(storage);
    next.push_back(s.pending.values + place);
  }
  for (auto segment : segments) {
    const auto& code = s.tables.defined_segments.at(segment)->code;
    if (code.size() >= at + next.size() && std::equal(next.begin(), next.end(), code.begin() + at)) matching.push_back(segment);
  }
  return matching;
}
// Returns true if this call is the next one of an awaited segment; then waits.
inline bool follows(const Entry& entry, const Key& key) {
  auto& s = state();
  if (!s.pending.code.empty() && !s.reporting.waiting) return false;
  auto matching = matching_segments(s.reporting.waiting ? s.reporting.following : s.reporting.awaited, entry, key);
  if (matching.empty()) return false;
  s.reporting.following = std::move(matching);
  s.reporting.waiting = true;
  return true;
}
// Returns true if nothing need be noted up to the next read, because this call begins a segment that stays in this process.
// One time in sixteen, at random, it is noted all the same: another inference that could be divided may begin so, too.
inline bool may_rest(const Entry& entry, const Key& key) {
  auto& s = state();
  if (!s.pending.code.empty() || s.reporting.reports_bytes || matching_segments(s.sampling.local_segments, entry, key).empty()) return false;
  s.sampling.sampler = s.sampling.sampler * 1664525u + 1013904223u;
  return s.sampling.sampler >> 28 != 0;
}

inline Fate note_or_wait(const Entry& entry, const Key& key) {
  auto& s = state();
  if (follows(entry, key)) { note(&entry, key); return Fate::kWait; }
  if (s.reporting.waiting) { leave(); return Fate::kCompute; }
  if (may_rest(entry, key)) { s.skipping = s.sampling.resting = true; s.reporting.skip_reason = ""; return Fate::kCompute; }
  if (s.pending.code.size() > kFlushLength) { skip_segment("is too long"); return Fate::kCompute; }
  note(&entry, key);
  return Fate::kNoted;
}
template <typename Fill>
inline Fate note_or_wait(const char* name, Fill fill) {
  if (state().skipping) return Fate::kCompute;
  forget_if_many();
  Key key(name);
  fill(key);
  return note_or_wait(*special(name, key), key);
}

// Takes the lock if calls are watched; `at_once`: this call may be computed without noting it.
struct Entered {
  std::optional<Hold> hold;
  bool at_once;
  Entered() : at_once(!state().lagging) { if (state().watched) { hold.emplace(); at_once = state().skipping; } }
};

// Records that a storage from before this segment is about to be written.
inline void writes(c10::StorageImpl* storage) {
  auto& s = state();
  auto* context = context_of(storage);
  if (!context->listed || (context->fresh && context->epoch == s.epoch)) return;
  if (s.reporting.reports_writes) {
    py::gil_scoped_acquire gil;
    Busy busy;
    py::reinterpret_borrow<py::object>(s.handler).attr("before_write")(context->id);
  }
  if (s.reporting.written.empty() || s.reporting.written.back() != context->id) s.reporting.written.push_back(context->id);
}
inline void writes(const IValue& v) {
  if (v.isTensor()) { if (v.toTensor().defined() && on_device(v.toTensor())) writes(v.toTensor().storage().unsafeGetStorageImpl()); }
  else if (v.isList()) for (const IValue& item : v.toListRef()) writes(item);
}

// Reports a read to the handler: it ends the segment, which has been computed.
inline void report_read(const Tensor& host) {
  auto& s = state();
  const bool skipping = s.skipping;
  if (std::exchange(s.sampling.resting, false)) {
    bool deaths;
    { std::lock_guard<std::mutex> hold(s.drops.deaths); deaths = !s.drops.dead.empty(); }
    if (!deaths && s.reporting.written.empty()) {
      s.skipping = false;
      ++s.epoch;
      const auto now = std::chrono::steady_clock::now();
      if (s.sampling.reported_flushes == s.count_flushes && now - s.sampling.reported_at < s.sampling.report_interval) return;
      s.sampling.reported_at = now;
      s.sampling.reported_flushes = s.count_flushes;
      py::gil_scoped_acquire gil;
      Busy busy;
      py::reinterpret_borrow<py::object>(s.handler).attr("rested")();
      return;
    }
  }
  const double seconds = seconds_of(s.pending);
  std::vector<uint64_t> written;
  written.swap(s.reporting.written);
  s.skipping = false;
  s.reporting.cut_read = s.reporting.cut != 0;  // its uses are recorded until the next upload
  Ended ended;
  if (skipping && ended.deaths.empty() && written.empty()) return;
  py::gil_scoped_acquire gil;
  SegmentReport report(ended);
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("computed")(
      s.tables.generation, skipping ? py::object(py::str(s.reporting.skip_reason)) : py::object(py::int_(ended.id)), ended.base, report.live, report.dead, report.freed, report.numbers,
      report.payloads, host.defined() ? py::object(py::cast(host)) : py::object(py::none()), seconds, written);
}

// Runs `use` on a host tensor, which may share the device's memory.
template <typename Use>
inline void read_on_host(const Tensor& source, Use use) {
  auto& s = state();
  BelowAll below;
  if (!s.watched) { use(host_of(source)); return; }
  Hold hold;
  if (note_or_wait(kDownload, [&](Key& key) { key.tensor(source); }) == Fate::kWait) {
    s.reporting.waiting = false;
    Tensor host;
    flush(kRead, [&](const py::object& result) { host = py::cast<Tensor>(result); });
    use(host);
    return;
  }
  const Tensor host = host_of(source);
  use(host);
  report_read(s.reporting.reports_bytes && !s.skipping ? host.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous) : Tensor());
}

inline void write_on_host(const Tensor& self, const Tensor& source) {
  auto& s = state();
  BelowAll below;
  if (!s.watched) { copy_on_host(host_of(self), source); return; }
  Hold hold;
  if (s.reporting.cut_read) tell_uses();
  const auto fate = note_or_wait(kUpload, [&](Key& key) {
    key.tensor(self);
    key.tag('P'); key.put(static_cast<uint8_t>(source.scalar_type())); key.put(static_cast<uint8_t>(source.dim()));
    key.put_list(source.sizes().data(), source.dim());
    key.payloads.push_back(source);
  });
  if (fate == Fate::kWait) return;
  try {
    writes(self.storage().unsafeGetStorageImpl());
    copy_on_host(host_of(self), source);
  } catch (...) { give_up(""); throw; }
}

inline void compute(const c10::OperatorHandle& op, Stack* stack) {
  auto& s = state();
  const auto& facts = facts_of(op);
  const auto& schema = op.schema();
  const size_t arguments = schema.arguments().size(), first = stack->size() - arguments;
  Computing computing(op, facts);
  ++s.count_calls;
  if (s.lagging && queued(op, facts, stack)) return;
  if (!s.watched) {
    computing.run(stack, first);
    computing.give(stack, first, false, nullptr);
    return;
  }
  Hold hold;
  Entry* entry = nullptr;
  if (!s.skipping) {
    forget_if_many();
    Key key(&schema);
    for (size_t i = 0; i < arguments; ++i) key.value((*stack)[first + i], schema.name().c_str());
    entry = lookup(key);
    if (!entry && has_dynamic_results(op, *stack, first)) cut();
    else {
      if (!entry) entry = intern(key.view(), c10::toString(op.operator_name()));
      if (entry->cached) check_room(new_bytes(entry->returns));
      const auto fate = note_or_wait(*entry, key);
      if (fate == Fate::kWait) { ++s.tables.count_hits; give_results(entry->returns, key, stack, arguments, true); return; }
      if (fate == Fate::kCompute) entry = nullptr;
    }
  }
  try {
    for (auto position : facts.written) writes((*stack)[first + position]);
    if (facts.statistics >= 0 && (*stack)[first + facts.statistics + 2].toBool())
      for (int i = 0; i < 2; ++i) writes((*stack)[first + facts.statistics + i]);
    computing.run(stack, first);
    std::vector<Return> described;
    const bool describe = entry && !entry->cached;
    computing.give(stack, first, entry != nullptr, describe ? &described : nullptr);
    if (describe) { entry->returns = std::move(described); entry->cached = true; }
  } catch (...) { give_up(""); throw; }
}

}  // namespace edge_offload
