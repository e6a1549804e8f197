// Cache of tensors that the program has compared (compare.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace edge_offload {

constexpr size_t kConstantBytes = 4096;  // largest storage that is read for a comparison: at most three packets
constexpr size_t kMaxCompared = 1u << 12;
constexpr size_t kAlongBytes = 32768;  // most bytes of other constants that are read with one
constexpr size_t kMaxRecent = 256;     // most candidates for them

struct Compared {
  bool used = false;      // the program has compared tensors; writes are recorded from then on
  uint64_t older = 0;     // storages with lower numbers existed before the upload that started the present inference
  uint64_t flushes = 0;   // value of DeviceState::count_flushes then
  std::unordered_map<uint64_t, at::Tensor> bytes;  // of storages, since they were last written
  std::unordered_set<uint64_t> named;              // storages with entries in `answers`
  std::unordered_set<uint64_t> varying;            // storages that were written after a comparison
  std::unordered_map<std::string, bool> answers;   // of pairs of tensors
  std::deque<c10::weak_intrusive_ptr<c10::StorageImpl>> recent;  // small results since the first comparison

  bool is_constant(uint64_t id) const { return !varying.count(id) && (id < older || named.count(id)); }
  // Notes an upload; the first one after a read begins an inference.
  void uploads(uint64_t next, uint64_t flushed) {
    if (flushed != flushes) older = next;
    flushes = flushed;
  }
  void wrote(uint64_t id) {
    if (!used || !(named.erase(id) + bytes.erase(id))) return;
    if (varying.size() >= kMaxCompared) varying.clear();
    varying.insert(id);
    answers.clear();
  }
  // Notes a new result: torch.jit.freeze compares folded constants with each other before they are used.
  void made(const c10::Storage& storage) {
    if (!used || storage.nbytes() == 0 || storage.nbytes() > kConstantBytes) return;
    if (recent.size() >= kMaxRecent) recent.pop_front();
    recent.emplace_back(storage.getWeakStorageImpl());
  }
  void make_room() {
    if (bytes.size() >= kMaxCompared) bytes.clear();
    if (named.size() < kMaxCompared && answers.size() < kMaxCompared) return;
    named.clear();
    answers.clear();
  }
};

}  // namespace edge_offload
