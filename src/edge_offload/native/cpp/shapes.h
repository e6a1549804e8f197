// Metadata of results by meta kernels.
#pragma once
#include "state.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace edge_offload {

// Operator whose meta kernel gives the metadata of ``op``, and its arguments. torch 2.10 has none for _convolution, which is
// convolution with four more flags that change no shape.
inline c10::OperatorHandle with_meta_kernel(const c10::OperatorHandle& op, Stack& arguments) {
  const auto& schema = op.schema();
  if (schema.name() != "aten::_convolution" || !schema.overload_name().empty() || op.hasKernelForDispatchKey(c10::DispatchKey::Meta)) return op;
  static const auto like = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
  arguments.resize(like.schema().arguments().size());
  return like;
}

// Runs the meta kernel of a call, for the metadata of its results.
class MetaRun {
 public:
  std::vector<Return> run(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key) {
    Stack meta;
    for (size_t i = first; i < stack.size(); ++i) meta.push_back(convert(stack[i], key));
    with_meta_kernel(op, meta).callBoxed(&meta);
    std::vector<Return> returns;
    for (const auto& value : meta) {
      Return r;
      if (value.isTensor()) r.outs.push_back(describe(value.toTensor()));
      else {
        r.kind = Return::kList;
        for (const IValue& item : value.toListRef()) r.outs.push_back(describe(item.toTensor()));
      }
      returns.push_back(std::move(r));
    }
    return returns;
  }

 private:
  std::vector<c10::Storage> storages_;
  std::vector<Tensor> operands_;

  Tensor convert(const Tensor& t, const Key& key) {
    if (!t.defined() || !on_device(t)) return t;
    while (storages_.size() < key.storages.size())
      storages_.push_back(c10::Storage(c10::make_intrusive<c10::StorageImpl>(
          c10::StorageImpl::use_byte_size_t(), key.storages[storages_.size()]->nbytes(), c10::GetAllocator(c10::kMeta), true)));
    size_t number = 0;
    while (key.storages[number] != t.storage().unsafeGetStorageImpl()) ++number;
    auto m = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storages_[number]), c10::DispatchKeySet(c10::DispatchKey::Meta), t.dtype());
    m.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
    operands_.push_back(m);
    return m;
  }
  IValue convert(const IValue& v, const Key& key) {
    if (v.isTensor()) return convert(v.toTensor(), key);
    if (v.isDevice()) return c10::Device(c10::kMeta);
    if (v.isGenerator()) return IValue();
    if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const IValue& item : v.toListRef()) list.push_back(convert(item.toTensor(), key));
      return list;
    }
    if (v.isList() && v.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<optional<Tensor>> list;
      for (const IValue& item : v.toListRef())
        list.push_back(item.isTensor() ? optional<Tensor>(convert(item.toTensor(), key)) : nullopt);
      return list;
    }
    return v;
  }
  Out describe(const Tensor& t) {
    Out out;
    if (!t.defined()) return out;
    out.kind = Out::kNew;
    for (size_t i = 0; i < operands_.size(); ++i)
      if (operands_[i].is_same(t)) { out.kind = Out::kArgument; out.ref = i; break; }
    auto* storage = t.storage().unsafeGetStorageImpl();
    if (out.kind == Out::kNew) {
      for (size_t i = 0; i < storages_.size(); ++i)
        if (storages_[i].unsafeGetStorageImpl() == storage) { out.kind = Out::kAlias; out.ref = i; break; }
      if (out.kind == Out::kNew) storages_.push_back(t.storage());
    }
    out.type = t.scalar_type();
    out.sizes.append(t.sizes().begin(), t.sizes().end());
    out.strides.append(t.strides().begin(), t.strides().end());
    out.offset = t.storage_offset();
    out.bytes = storage->nbytes();
    return out;
  }
};

}  // namespace edge_offload
