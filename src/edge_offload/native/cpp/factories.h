// Making empty tensors.
#pragma once
#include "watching.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>

namespace edge_offload {

inline void check_device(optional<at::Device> device) {
  TORCH_CHECK(!device || device->index() <= 0, "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
}
inline Tensor empty_memory_format(c10::SymIntArrayRef size, optional<at::ScalarType> dtype, optional<at::Layout> layout,
                           optional<at::Device> device, optional<bool> pinned, optional<at::MemoryFormat> format) {
  check_device(device);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "edge_offload: layout ", *layout, " is not supported on the device");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  if (state().local && size.size() == 1 && size[0] == 0) {
    Entered entered;
    if (entered.at_once) return empty_on_host(c10::scalarTypeToTypeMeta(dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype()))));
  }
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(), c10::DispatchKeySet(kKey),
                                   dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())), format);
}
inline Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, optional<at::ScalarType> dtype,
                     optional<at::Layout> layout, optional<at::Device> device, optional<bool> pinned) {
  check_device(device);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "edge_offload: layout ", *layout, " is not supported on the device");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator(),
                                           c10::DispatchKeySet(kKey), dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
}

}  // namespace edge_offload
