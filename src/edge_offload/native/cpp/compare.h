// Operator `equal`, with a cache, because each comparison costs a round trip. Programs that search for equal constants
// (torch.jit does, pair by pair) compare the same tensors many times. Results are cached until one of the tensors is written.
// Small constants are read once, and compared on the host. With the first of them, others that were made since are read, too:
// they are often compared next, as the folded weights of torch.jit.freeze.
#pragma once
#include "copies.h"

namespace edge_offload {

inline uint64_t id_of(const Tensor& t) { return context_of(t.storage().unsafeGetStorageImpl())->id; }

template <typename T>
auto named(const T& t, int) -> decltype(t.has_names()) { return t.has_names(); }
template <typename T>
bool named(const T&, long) { return false; }  // releases of torch without names of dimensions

// Tensor of all bytes of a device storage.
inline Tensor all_bytes(const c10::Storage& storage) {
  Out out;
  out.type = at::kByte;
  out.sizes = {static_cast<int64_t>(storage.nbytes())};
  out.strides = {1};
  return make_tensor(storage, out);
}
// Host copy of a device tensor, over the bytes of its storage.
inline Tensor on_host(const Tensor& t, const Tensor& bytes) {
  return at::empty({0}, at::TensorOptions(t.dtype())).set_(bytes.storage(), t.storage_offset(), t.sizes(), t.strides());
}

// Adds constants made since the first comparison whose values are unknown, each once.
inline void add_recent(std::vector<Tensor>* unknown) {
  auto& compared = state().inference.compared;
  std::deque<c10::weak_intrusive_ptr<c10::StorageImpl>> later;
  size_t bytes = 0;
  for (auto& one : compared.recent) {
    auto alive = one.lock();
    if (!alive || alive->nbytes() == 0 || alive->nbytes() > kConstantBytes) continue;
    const c10::Storage storage(std::move(alive));
    const auto id = context_of(storage.unsafeGetStorageImpl())->id;
    if (!compared.is_constant(id) || bytes + storage.nbytes() > kAlongBytes) { later.push_back(std::move(one)); continue; }
    if (compared.bytes.count(id)) continue;
    bool wanted = false;
    for (const auto& t : *unknown) wanted = wanted || id_of(t) == id;
    if (wanted) continue;
    bytes += storage.nbytes();
    unknown->push_back(all_bytes(storage));
  }
  compared.recent.swap(later);
}

// Reads the unknown constants among `wanted` in one go; returns true if the values of all are cached then.
inline bool read_constants(const std::vector<Tensor>& wanted) {
  auto& compared = state().inference.compared;
  compared.make_room();
  std::vector<Tensor> unknown;
  for (const auto& t : wanted) {
    if (!compared.is_constant(id_of(t)) || t.storage().nbytes() > kConstantBytes) return false;
    if (!compared.bytes.count(id_of(t))) unknown.push_back(all_bytes(t.storage()));
  }
  if (unknown.empty()) return true;
  if (unknown.size() == 2 && id_of(unknown[0]) == id_of(unknown[1])) unknown.pop_back();
  add_recent(&unknown);
  const Tensor host = read(unknown.size() == 1 ? unknown[0] : at::cat(unknown));
  int64_t at = 0;
  for (const auto& one : unknown) {
    compared.bytes[id_of(one)] = host.narrow(0, at, one.numel()).clone();
    at += one.numel();
  }
  return true;
}

inline bool equal(const Tensor& self, const Tensor& other) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::equal", "");
  const auto ask = [&] {
    Stack stack{self, other};
    boxed(op, &stack);
    return stack.back().toBool();
  };
  auto& s = state();
  if (s.local || s.per_call) return ask();
  for (const auto* t : {&self, &other})
    if (!t->defined() || !on_device(*t) || t->layout() != at::kStrided || t->is_conj() || t->is_neg() || named(*t, 0)) return ask();
  if (self.sizes() != other.sizes()) return false;  // as in torch's kernels
  if (self.numel() == 0) return true;
  BelowAll below;
  Hold hold;
  auto& compared = s.inference.compared;
  compared.used = true;
  Key key(&op.schema());
  key.tensor(self);
  key.tensor(other);
  const uint64_t ids[2] = {id_of(self), id_of(other)};
  key.put(ids);
  const std::string pair(key.view());
  if (const auto answer = compared.answers.find(pair); answer != compared.answers.end()) return answer->second;
  const bool are_read = read_constants({self, other});
  const bool answer = are_read ? at::equal(on_host(self, compared.bytes.at(ids[0])), on_host(other, compared.bytes.at(ids[1]))) : ask();
  compared.make_room();
  for (auto id : ids) compared.named.insert(id);
  compared.answers[pair] = answer;
  return answer;
}

}  // namespace edge_offload
