// Notes calls in the pending segment.
#pragma once
#include "storage.h"

namespace edge_offload {

inline void append_code(uint32_t value) {
  auto& segment = state().pending;
  segment.code.push_back(value);
  segment.hash[0] = (segment.hash[0] ^ value) * 0x9fb21c651e98df25ull;
  segment.hash[0] ^= segment.hash[0] >> 32;
  segment.hash[1] = (segment.hash[1] + value) * 0xd6e8feb86659fd93ull;
  segment.hash[1] ^= segment.hash[1] >> 29;
}

inline uint32_t canonical(c10::StorageImpl* storage) {
  auto& s = state();
  auto* context = context_of(storage);
  if (context->epoch != s.epoch) {
    context->epoch = s.epoch;
    context->canonical = s.pending.values++;
    context->fresh = false;
    if (s.local && !context->listed) {
      std::lock_guard<std::mutex> hold(s.drops.deaths);
      s.drops.listed.emplace(context->id, context);
      context->listed = true;
    }
    s.pending.live.push_back(context->canonical);
    s.pending.live.push_back(context->id);
  }
  return context->canonical;
}

// Finds the entry of a call. It is usually the one that followed last time; then its key is not hashed.
inline Entry* lookup(const Key& key) {
  auto& s = state();
  const auto bytes = key.view();
  Entry* before = s.tables.last;
  if (before && before->next && std::string_view(before->next->key) == bytes) return s.tables.last = before->next;
  auto match = s.tables.entries.find(bytes);
  s.tables.last = match == s.tables.entries.end() ? nullptr : match->second.get();
  if (before) before->next = s.tables.last;
  return s.tables.last;
}
inline Entry* intern(std::string_view key, std::string name) {
  auto& s = state();
  auto entry = std::make_unique<Entry>();
  entry->index = s.tables.by_index.size();
  entry->name = std::move(name);
  entry->key = key;
  auto* result = entry.get();
  s.tables.by_index.push_back(result);
  s.tables.entries.emplace(std::string_view(result->key), std::move(entry));
  return result;
}

inline void forget() {
  auto& s = state();
  s.tables.entries.clear();
  s.tables.by_index.clear();
  s.tables.last = nullptr;
  s.tables.segments.clear();
  s.tables.defined_segments.clear();
  s.tables.expected = -1;
  s.reporting.awaited.clear();
  s.sampling.local_segments.clear();
  ++s.tables.generation;
}
inline void forget_if_many() {
  auto& s = state();
  if ((s.tables.by_index.size() < kMaxEntries && s.tables.defined_segments.size() < kMaxSegments) || !s.pending.code.empty()) return;
  s.inference.supposed.clear();
  forget();
}

inline void announce_if_complete();
inline void note_use(const Context& context, const c10::TensorImpl* mine);

inline void note(const Entry* entry, const Key& key) {
  auto& segment = state().pending;
  // everything that may throw comes first: half a call would make the rest of the segment unreadable
  for (auto* storage : key.references) context_of(storage);
  if (state().reporting.cut)
    for (const auto* t : key.tensors) {
      const auto* context = context_of(t->storage().unsafeGetStorageImpl());
      if (context->cut()) note_use(*context, t->unsafeGetTensorImpl());
    }
  c10::SmallVector<Tensor, 2> payloads;
  for (const auto& payload : key.payloads) {
    if (state().local && !state().reporting.waiting && !state().reporting.reports_bytes) { payloads.emplace_back(); continue; }  // its bytes are not needed
    auto plain = payload.resolve_conj().resolve_neg().contiguous();
    payloads.push_back(plain.is_alias_of(payload) ? plain.clone() : plain);
  }
  if (segment.code.empty()) {
    segment.base = state().next_id;
    if (state().local) segment.started_at = std::chrono::steady_clock::now();
  }
  append_code(entry->index);
  for (auto* storage : key.references) append_code(canonical(storage));
  for (const auto& number : key.numbers) segment.numbers.push_back(number);
  ++segment.calls;
  if (payloads.empty()) return;
  for (auto& payload : payloads) {
    if (payload.defined()) segment.payload_bytes += payload.nbytes();
    segment.payloads.push_back(std::move(payload));
  }
  announce_if_complete();
}

const char* const kAlloc = "edge::alloc";
const char* const kResize = "edge::resize";
const char* const kUpload = "edge::upload";
const char* const kDownload = "edge::download";
const char* const kSeed = "edge::seed";
const char* const kState = "edge::state";
const char* const kRestore = "edge::restore";

// Entry of a call that is not an operator.
inline Entry* special(const char* name, const Key& key) {
  auto* entry = lookup(key);
  if (!entry) { entry = intern(key.view(), name); entry->cached = true; }
  return entry;
}
// Notes that the program writes to a storage, which may have been compared (compare.h).
inline void written(c10::StorageImpl* storage, bool uploads = false) {
  auto& s = state();
  if (!s.inference.compared.used) return;
  const auto id = context_of(storage)->id;
  s.inference.compared.wrote(id);
  if (uploads) s.inference.compared.uploads(id + 1 == s.next_id ? id : s.next_id.load(), s.count_flushes);
}
template <typename Fill>
inline Entry* note_special(const char* name, Fill fill) {
  Key key(name);
  fill(key);
  auto* entry = special(name, key);
  if (name != kDownload)
    for (auto* storage : key.references) written(storage, name == kUpload);
  note(entry, key);
  return entry;
}

}  // namespace edge_offload
