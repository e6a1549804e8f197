// Host memory behind the device's storages, and the device's random generators, if this process computes the calls.
#pragma once
#include "arena.h"
#include "flush.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/native/Resize.h>

namespace edge_offload {

// Excludes autograd, autocast and tracing, as below the kernels of a device.
struct BelowAll {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                                           c10::DispatchKeySet(c10::DispatchKey::Tracer)};
};

inline c10::Storage host_memory(int64_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, &arena(), true);
}

// Requests a storage's value from the handler, which has not needed it so far.
inline void bring(Context* context) {
  py::gil_scoped_acquire gil;
  Busy busy;
  auto bytes = py::reinterpret_borrow<py::object>(state().handler).attr("memory")(context->id);
  context->memory = py::cast<Tensor>(bytes).storage();
}

inline const c10::Storage& memory_of(c10::StorageImpl* storage) {
  auto* context = context_of(storage);
  if (!context->memory) bring(context);
  return context->memory;
}

// Stores a host tensor over the memory of `context` for reuse, if there is a free entry.
inline void remember_host_tensor(Context* context, const Tensor& host) {
  for (auto& entry : context->host_tensors) {
    c10::TensorImpl* none = nullptr;
    if (entry.load(std::memory_order_relaxed)) continue;
    c10::raw::intrusive_ptr::incref(host.unsafeGetTensorImpl());
    if (entry.compare_exchange_strong(none, host.unsafeGetTensorImpl(), std::memory_order_acq_rel)) return;
    c10::raw::intrusive_ptr::decref(host.unsafeGetTensorImpl());
  }
}
// Records that a storage of a cut segment is used after the cut.
[[gnu::noinline]] inline void note_use(const Context& context, const c10::TensorImpl* mine) {
  auto& s = state();
  for (const auto& use : s.reporting.uses) if (use.id == context.id) return;
  const auto bytes = static_cast<int64_t>(mine->storage().nbytes()), item = static_cast<int64_t>(mine->dtype().itemsize());
  auto flat = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(mine->storage()), c10::DispatchKeySet(kKey), mine->dtype());
  if (mine->is_non_overlapping_and_dense() && mine->storage_offset() == 0 && mine->numel() * item == bytes)
    flat.unsafeGetTensorImpl()->set_sizes_and_strides(mine->sizes(), mine->strides());
  else
    flat.unsafeGetTensorImpl()->set_sizes_contiguous(c10::IntArrayRef(bytes / item));
  Key key(kDownload);
  key.tensor(flat);
  Tensor value;
  if (s.reporting.reports_bytes && context.memory) {  // unchanged since the cut, because this is its first use
    auto host = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(context.memory), c10::DispatchKeySet(c10::DispatchKey::CPU), mine->dtype());
    host.unsafeGetTensorImpl()->set_sizes_and_strides(flat.sizes(), flat.strides());
    value = host.clone(at::MemoryFormat::Contiguous);
  }
  s.reporting.uses.push_back({context.id, context.canonical, special(kDownload, key)->index, value});
}
// Stored host tensor with the metadata of a device tensor over this storage; null: there is none.
inline c10::TensorImpl* Context::find_host_tensor(const c10::TensorImpl* mine) const {
  if (cut()) note_use(*this, mine);
  for (const auto& entry : host_tensors) {
    auto* host = entry.load(std::memory_order_acquire);
    if (!host) break;
    if (host->sizes() == mine->sizes() && host->strides() == mine->strides() && host->storage_offset() == mine->storage_offset() &&
        host->dtype() == mine->dtype() && host->is_conj() == mine->is_conj() && host->is_neg() == mine->is_neg())
      return host;
  }
  return nullptr;
}

// Host tensor over the memory of a device tensor.
inline Tensor host_of(const Tensor& t) {
  TORCH_CHECK(t.layout() == at::kStrided, "edge_offload: a ", t.layout(), " tensor is not supported on the device");
  auto* context = context_of(t.storage().unsafeGetStorageImpl());
  if (auto* seen = context->find_host_tensor(t.unsafeGetTensorImpl())) return Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(seen));
  auto host = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(memory_of(t.storage().unsafeGetStorageImpl())),
                                                       c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  host.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  if (t.is_conj()) host._set_conj(true);
  if (t.is_neg()) host._set_neg(true);
  remember_host_tensor(context, host);
  return host;
}

// Copies a tensor on the host; as one block if both have the same dense layout.
inline void copy_on_host(const Tensor& to, const Tensor& from) {
  const auto *a = to.unsafeGetTensorImpl(), *b = from.unsafeGetTensorImpl();
  if (a->dtype() == b->dtype() && a->sizes() == b->sizes() && a->strides() == b->strides() && a->is_non_overlapping_and_dense() &&
      a->has_storage() && b->has_storage() && !a->is_conj() && !b->is_conj() && !a->is_neg() && !b->is_neg() && !from.is_quantized() && from.device().is_cpu() &&
      since_2_1::data_of(from) != nullptr)
    std::memcpy(to.data_ptr(), since_2_1::data_of(from), from.nbytes());
  else
    to.copy_(from);
}

// Tensor without elements, over a free spare storage. A batch normalisation makes three of them that are not used.
[[gnu::noinline]] inline Tensor empty_on_host(caffe2::TypeMeta type) {
  c10::Storage other, *storage = &other;
  for (auto& one : spares())
    if (!one || one.use_count() == 1) { storage = &one; break; }
  if (!*storage || storage->nbytes() > 0) {  // another thread may have given it bytes
    *storage = new_storage(0, false);
    auto* context = context_of(storage->unsafeGetStorageImpl());
    context->memory = host_memory(0);
    context->spare = storage != &other;
  }
  return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(*storage), c10::DispatchKeySet(kKey), type);
}

// Generator of the device by its number; 0 is the default one.
inline at::Generator generator_of(int64_t number) {
  static auto* lock = new std::mutex;
  static auto* generators = new std::unordered_map<int64_t, at::Generator>;
  std::lock_guard<std::mutex> hold(*lock);
  auto& generator = (*generators)[number];
  if (!generator.defined()) generator = at::detail::createCPUGenerator();
  return generator;
}
inline Tensor state_of(at::Generator generator) {
  std::lock_guard<std::mutex> hold(generator.mutex());
  return generator.get_state();
}
inline void restore(at::Generator generator, const Tensor& state) {
  std::lock_guard<std::mutex> hold(generator.mutex());
  generator.set_state(state);
}

// Scope in which the host's default generator has the state of the device's.
class Drawing {
 public:
  Drawing() : saved_(state_of(at::detail::getDefaultCPUGenerator())) {
    restore(at::detail::getDefaultCPUGenerator(), state_of(generator_of(0)));
  }
  ~Drawing() {
    restore(generator_of(0), state_of(at::detail::getDefaultCPUGenerator()));
    restore(at::detail::getDefaultCPUGenerator(), saved_);
  }

 private:
  Tensor saved_;
};

}  // namespace edge_offload
