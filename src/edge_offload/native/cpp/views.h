// Metadata that the client changes by itself: views, sizes, storages.
#pragma once
#include "copies.h"

#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>

namespace edge_offload {

inline Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }
inline Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? optional<int64_t>(offset->expect_int()) : nullopt);
}
inline Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
inline Tensor unsafe_view(const Tensor& self, c10::SymIntArrayRef size) { return view(self, size); }

inline int64_t bytes_needed(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset) {
  return at::detail::computeStorageNbytes(size, stride, self.dtype().itemsize(), offset);
}
inline const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef sizes, optional<at::MemoryFormat> format) {
  Hold hold;
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto* implementation = self.unsafeGetTensorImpl();
  if (implementation->sizes() != size) {
    implementation->set_sizes_contiguous(size);
    grow(self.storage(), bytes_needed(self, implementation->sizes(), implementation->strides(), implementation->storage_offset()));
  }
  if (format) implementation->empty_tensor_restride(*format);
  return self;
}
inline Tensor& set_storage_at(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  Hold hold;
  TORCH_CHECK(source.device().type() == kDevice, "Expected a storage on cuda:0, but it is on ", source.device());
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto stride = C10_AS_INTARRAYREF_SLOW(strides);
  auto* implementation = self.unsafeGetTensorImpl();
  c10::SmallVector<int64_t, 5> contiguous(size.size(), 1);
  for (int64_t i = static_cast<int64_t>(size.size()) - 2; i >= 0; --i)
    contiguous[i] = contiguous[i + 1] * std::max<int64_t>(size[i + 1], 1);
  auto used = stride.data() ? stride : c10::IntArrayRef(contiguous);
  TORCH_CHECK(used.size() == size.size(), "unequal size length (", size.size(), ") and stride length (", used.size(), ")");
  TORCH_CHECK(offset.expect_int() >= 0, "Tensor: invalid storage offset ", offset);
  implementation->set_storage_keep_dtype(source);
  implementation->set_sizes_and_strides(size, used, offset.expect_int());
  grow(source, bytes_needed(self, size, used, offset.expect_int()));
  return self;
}
inline Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  const c10::SymInt size(count), stride(1);
  return set_storage_at(self, source, 0, c10::SymIntArrayRef(&size, 1), c10::SymIntArrayRef(&stride, 1));
}
inline Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_at(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}
inline Tensor& set_nothing(Tensor& self) {
  const c10::SymInt size(0), stride(1);
  return set_storage_at(self, c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true)), 0,
      c10::SymIntArrayRef(&size, 1), c10::SymIntArrayRef(&stride, 1));
}
inline bool is_set_to(const Tensor& self, const Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() && self.strides() == source.strides();
}
inline void record_stream(Tensor& self, c10::Stream) { context_of(self.storage().unsafeGetStorageImpl())->crossed = true; }

}  // namespace edge_offload
