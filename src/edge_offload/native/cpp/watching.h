// Calls that this process computes are noted beside it: the handler finds inferences that come again among them, and
// says which to wait for. The calls of one that is awaited are only noted, as for a server, until its read, when the
// handler has robot and server compute it together; or until the program does something else.
#pragma once
#include "streams.h"

namespace edge_offload {

enum class Fate { kCompute, kNoted, kWait };  // compute it; compute it, it is noted; it is noted and has to wait

// This segment is no inference that could be repeated: the rest of it is not recorded.
inline void spoil(const char* why) {
  auto& s = state();
  s.pending = Segment();
  ++s.epoch;
  s.spoiled = true;
  s.spoiled_by = why;
}
// The program does something else than what was waited for: what it did up to here is computed.
inline void leave() {
  auto& s = state();
  s.waiting = false;
  s.spoiled = true;
  s.spoiled_by = "";
  flush(kBarrier);
}
inline void give_up(const char* why) {
  if (state().waiting) leave();
  else if (!state().spoiled) spoil(why);
}

// Seconds since the start of a segment.
inline double seconds_of(const Segment& segment) {
  return segment.words.empty() ? 0.0 : std::chrono::duration<double>(std::chrono::steady_clock::now() - segment.started_at).count();
}
// What comes now has sizes that depend on data, and is computed here. What led there, if anything was uploaded in it, may
// be most of an inference that comes again: the segment ends here, and the program goes on with what it left.
inline void cut() {
  auto& s = state();
  const char* const why = "has sizes that depend on data";
  if (s.pending.payloads.empty()) { give_up(why); return; }
  if (s.waiting) {
    const auto& words = s.pending.words;
    if (std::none_of(s.following.begin(), s.following.end(), [&](uint32_t id) { return s.known.at(id)->words.size() == words.size(); })) {
      leave();
      return;
    }
    s.waiting = false;
    flush(kCut);
  } else {
    const double seconds = seconds_of(s.pending);
    std::vector<uint64_t> written;
    written.swap(s.written);
    Ended ended;
    py::gil_scoped_acquire gil;
    Told report(ended);
    Busy busy;
    const bool learns = py::cast<bool>(py::reinterpret_borrow<py::object>(s.handler).attr("cut")(
        s.generation, ended.id, ended.base, report.live, report.dead, report.freed, report.numbers, report.payloads, seconds, written));
    if (learns) s.cut = ended.epoch;
  }
  s.spoiled = true;
  s.spoiled_by = "";
}
// The inference that was cut is over: the handler learns what the program used of what it left.
inline void tell_uses() {
  auto& s = state();
  s.cut = 0;
  s.cut_read = false;
  std::vector<Use> uses;
  uses.swap(s.uses);
  py::gil_scoped_acquire gil;
  py::list items;
  for (const auto& use : uses) items.append(py::make_tuple(use.id, use.canonical, use.entry, use.value.defined() ? py::object(py::cast(use.value)) : py::object(py::none())));
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("used")(items);
}

// Those of some segments that go on, or begin, with this call.
inline std::vector<uint32_t> alike(const std::vector<uint32_t>& segments, const Entry& entry, const Key& key) {
  auto& s = state();
  const size_t at = s.pending.words.size();
  std::vector<uint32_t> still;
  if (segments.empty() || !entry.known) return still;
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
    const auto& words = s.known.at(segment)->words;
    if (words.size() >= at + next.size() && std::equal(next.begin(), next.end(), words.begin() + at)) still.push_back(segment);
  }
  return still;
}
// Whether this call is the next one of a segment to wait for.
inline bool follows(const Entry& entry, const Key& key) {
  auto& s = state();
  if (!s.pending.words.empty() && !s.waiting) return false;
  auto still = alike(s.waiting ? s.following : s.awaited, entry, key);
  if (still.empty()) return false;
  s.following = std::move(still);
  s.waiting = true;
  return true;
}
// Whether nothing need be noted up to the next read: this begins like what is computed here anyway. One time in sixteen,
// at no fixed distance, it is noted all the same: it may be something else that begins so and could be divided.
inline bool may_rest(const Entry& entry, const Key& key) {
  auto& s = state();
  if (!s.pending.words.empty() || s.keep || alike(s.known_here, entry, key).empty()) return false;
  s.turn = s.turn * 1664525u + 1013904223u;
  return s.turn >> 28 != 0;
}

inline Fate note_or_wait(const Entry& entry, const Key& key) {
  auto& s = state();
  if (follows(entry, key)) { note(&entry, key); return Fate::kWait; }
  if (s.waiting) { leave(); return Fate::kCompute; }
  if (may_rest(entry, key)) { s.spoiled = s.resting = true; s.spoiled_by = ""; return Fate::kCompute; }
  if (s.pending.words.size() > kFlushWords) { spoil("is too long"); return Fate::kCompute; }
  note(&entry, key);
  return Fate::kNoted;
}
template <typename Fill>
inline Fate note_or_wait(const char* name, Fill fill) {
  if (state().spoiled) return Fate::kCompute;
  forget_if_many();
  Key key(name);
  fill(key);
  return note_or_wait(*special(name, key), key);
}

// The lock where calls are watched, and whether this one may be computed at once.
struct Entered {
  std::optional<Hold> hold;
  bool at_once;
  Entered() : at_once(!state().lagging) { if (state().watched) { hold.emplace(); at_once = state().spoiled; } }
};

// Memory that was there before this segment is about to change.
inline void writes(c10::StorageImpl* storage) {
  auto& s = state();
  auto* context = context_of(storage);
  if (!context->listed || (context->fresh && context->epoch == s.epoch)) return;
  if (s.owing) {
    py::gil_scoped_acquire gil;
    Busy busy;
    py::reinterpret_borrow<py::object>(s.handler).attr("before_write")(context->id);
  }
  if (s.written.empty() || s.written.back() != context->id) s.written.push_back(context->id);
}
inline void writes(const IValue& v) {
  if (v.isTensor()) { if (v.toTensor().defined() && on_device(v.toTensor())) writes(v.toTensor().storage().unsafeGetStorageImpl()); }
  else if (v.isList()) for (const IValue& item : v.toListRef()) writes(item);
}

// Reports a read to the handler: it ends the segment, which has been computed.
inline void report_read(const Tensor& host) {
  auto& s = state();
  const bool spoiled = s.spoiled;
  if (std::exchange(s.resting, false)) {
    bool deaths;
    { std::lock_guard<std::mutex> hold(s.deaths); deaths = !s.dead.empty(); }
    if (!deaths && s.written.empty()) {
      s.spoiled = false;
      ++s.epoch;
      const auto now = std::chrono::steady_clock::now();
      if (s.heard_after == s.count_flushes && now - s.heard < s.look) return;
      s.heard = now;
      s.heard_after = s.count_flushes;
      py::gil_scoped_acquire gil;
      Busy busy;
      py::reinterpret_borrow<py::object>(s.handler).attr("rested")();
      return;
    }
  }
  const double seconds = seconds_of(s.pending);
  std::vector<uint64_t> written;
  written.swap(s.written);
  s.spoiled = false;
  s.cut_read = s.cut != 0;  // what the program uses of it is of interest until it uploads something
  Ended ended;
  if (spoiled && ended.deaths.empty() && written.empty()) return;
  py::gil_scoped_acquire gil;
  Told report(ended);
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("computed")(
      s.generation, spoiled ? py::object(py::str(s.spoiled_by)) : py::object(py::int_(ended.id)), ended.base, report.live, report.dead, report.freed, report.numbers,
      report.payloads, host.defined() ? py::object(py::cast(host)) : py::object(py::none()), seconds, written);
}

// Runs `use` on a host tensor that may be the device's own memory.
template <typename Use>
inline void read_here(const Tensor& source, Use use) {
  auto& s = state();
  BelowAll below;
  if (!s.watched) { use(host_of(source)); return; }
  Hold hold;
  if (note_or_wait(kDownload, [&](Key& key) { key.tensor(source); }) == Fate::kWait) {
    s.waiting = false;
    Tensor host;
    flush(kRead, [&](const py::object& result) { host = py::cast<Tensor>(result); });
    use(host);
    return;
  }
  const Tensor host = host_of(source);
  use(host);
  report_read(s.keep && !s.spoiled ? host.resolve_conj().resolve_neg().clone(at::MemoryFormat::Contiguous) : Tensor());
}

inline void write_here(const Tensor& self, const Tensor& source) {
  auto& s = state();
  BelowAll below;
  if (!s.watched) { copy_here(host_of(self), source); return; }
  Hold hold;
  if (s.cut_read) tell_uses();
  const auto fate = note_or_wait(kUpload, [&](Key& key) {
    key.tensor(self);
    key.tag('P'); key.put(static_cast<uint8_t>(source.scalar_type())); key.put(static_cast<uint8_t>(source.dim()));
    key.put_list(source.sizes().data(), source.dim());
    key.payloads.push_back(source);
  });
  if (fate == Fate::kWait) return;
  try {
    writes(self.storage().unsafeGetStorageImpl());
    copy_here(host_of(self), source);
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
  if (!s.spoiled) {
    forget_if_many();
    Key key(&schema);
    for (size_t i = 0; i < arguments; ++i) key.value((*stack)[first + i], schema.name().c_str());
    entry = lookup(key);
    if (!entry && has_dynamic_results(op, *stack, first)) cut();
    else {
      if (!entry) entry = intern(key.view(), c10::toString(op.operator_name()));
      if (entry->known) check_room(new_bytes(entry->returns));
      const auto fate = note_or_wait(*entry, key);
      if (fate == Fate::kWait) { ++s.count_hits; give_results(entry->returns, key, stack, arguments, true); return; }
      if (fate == Fate::kCompute) entry = nullptr;
    }
  }
  try {
    for (auto position : facts.written) writes((*stack)[first + position]);
    if (facts.statistics >= 0 && (*stack)[first + facts.statistics + 2].toBool())
      for (int i = 0; i < 2; ++i) writes((*stack)[first + facts.statistics + i]);
    computing.run(stack, first);
    std::vector<Return> described;
    const bool describe = entry && !entry->known;
    computing.give(stack, first, entry != nullptr, describe ? &described : nullptr);
    if (describe) { entry->returns = std::move(described); entry->known = true; }
  } catch (...) { give_up(""); throw; }
}

}  // namespace edge_offload
