// Facts on tensors that the program has compared (compare.h).
#pragma once
#include <ATen/core/Tensor.h>

#include <deque>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace edge_offload {

constexpr size_t kConstantBytes = 4096;  // of a storage that is read for it: in a packet or three
constexpr size_t kMaxCompared = 1u << 12;
constexpr size_t kAlongBytes = 32768;  // of other constants that are read with one, and
constexpr size_t kMaxRecent = 256;     // ... among how many they are looked for

struct Compared {
  bool used = false;      // whether the program compares at all: writes are of interest from then on
  uint64_t older = 0;     // storages with lower numbers existed before the upload that started the present inference
  uint64_t flushes = 0;   // segments that had ended then
  std::unordered_map<uint64_t, at::Tensor> bytes;  // of storages, since they were last written
  std::unordered_set<uint64_t> named;              // storages that `answers` tells of
  std::unordered_set<uint64_t> varying;            // those that have been written after they were compared
  std::unordered_map<std::string, bool> answers;   // of pairs of tensors
  std::deque<c10::weak_intrusive_ptr<c10::StorageImpl>> recent;  // small results, made since the program compares

  bool is_constant(uint64_t id) const { return !varying.count(id) && (id < older || named.count(id)); }
  // Something is uploaded, of which the first after a read begins something new.
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
  // A result was made. What is folded into constants (torch.jit.freeze) is compared with each other before it is used.
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
