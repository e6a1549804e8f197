// Makes the results of a call from cached metadata.
#pragma once
#include "storage.h"

namespace edge_offload {

inline Out parse_out(const py::handle& item) {
  auto t = py::cast<py::tuple>(item);
  Out out;
  out.kind = t[0].cast<int>();
  if (out.kind == Out::kUndefined) return out;
  out.ref = t[1].cast<int>();
  out.type = static_cast<at::ScalarType>(t[2].cast<int>());
  out.flags = t[3].cast<int>();
  for (auto size : py::cast<py::sequence>(t[4])) out.sizes.push_back(size.cast<int64_t>());
  for (auto stride : py::cast<py::sequence>(t[5])) out.strides.push_back(stride.cast<int64_t>());
  out.offset = t[6].cast<int64_t>();
  out.bytes = t[7].cast<int64_t>();
  return out;
}
inline IValue parse_value(const py::handle& item, const c10::TypePtr& type) {
  if (item.is_none()) return IValue();
  if (py::isinstance<py::bool_>(item)) return item.cast<bool>();
  if (type->kind() == c10::TypeKind::FloatType) return item.cast<double>();
  if (py::isinstance<py::int_>(item)) return item.cast<int64_t>();
  if (py::isinstance<py::float_>(item)) return item.cast<double>();
  TORCH_CHECK(false, "edge_offload: the server returned a value of a kind that is not supported");
}
inline std::vector<Return> parse_returns(const py::object& result, const c10::FunctionSchema& schema) {
  std::vector<Return> returns;
  auto items = py::cast<py::sequence>(result);
  TORCH_CHECK(items.size() == schema.returns().size(), "edge_offload: the server answered ", schema.name(), " with ", items.size(), " results");
  for (size_t i = 0; i < items.size(); ++i) {
    auto item = py::cast<py::tuple>(items[i]);
    auto kind = item[0].cast<std::string>();
    Return r;
    if (kind == "t") r.outs.push_back(parse_out(item[1]));
    else if (kind == "l") { r.kind = Return::kList; for (auto out : py::cast<py::sequence>(item[1])) r.outs.push_back(parse_out(out)); }
    else { r.kind = Return::kValue; r.value = parse_value(item[1], schema.returns()[i].type()); }
    returns.push_back(std::move(r));
  }
  return returns;
}

// Bytes of what the call makes anew.
inline int64_t new_bytes(const std::vector<Return>& returns) {
  int64_t bytes = 0;
  for (const auto& r : returns)
    for (const auto& out : r.outs)
      if (out.kind == Out::kNew) bytes += out.bytes;
  return bytes;
}
inline Tensor make_tensor(c10::Storage storage, const Out& out) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(kKey), c10::scalarTypeToTypeMeta(out.type));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes, out.strides, out.offset);
  if (out.flags & 1) t._set_conj(true);
  if (out.flags & 2) t._set_neg(true);
  return t;
}
inline Tensor make_result(const Out& out, const Key& key, c10::SmallVector<c10::Storage, 4>& created, bool in_segment) {
  if (out.kind == Out::kUndefined) return Tensor();
  if (out.kind == Out::kArgument) {
    const Tensor& t = *key.tensors.at(out.ref);
    auto* implementation = t.unsafeGetTensorImpl();
    if (implementation->sizes() != c10::IntArrayRef(out.sizes) || implementation->strides() != c10::IntArrayRef(out.strides)) {
      if (out.bytes > static_cast<int64_t>(t.storage().nbytes())) {  // resized by out=
        t.storage().set_nbytes(out.bytes);
        hold_bytes(context_of(t.storage().unsafeGetStorageImpl()), out.bytes);
      }
      implementation->set_sizes_and_strides(out.sizes, out.strides, out.offset);
    }
    return t;
  }
  if (out.kind == Out::kNew) { created.push_back(new_storage(out.bytes, in_segment)); return make_tensor(created.back(), out); }
  const size_t number = out.ref;
  if (number < key.storages.size())
    return make_tensor(c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(key.storages[number])), out);
  return make_tensor(created[number - key.storages.size()], out);
}
inline void give_results(const std::vector<Return>& returns, const Key& key, Stack* stack, size_t arguments, bool in_segment) {
  if (returns.size() == 1 && returns[0].kind == Return::kTensor && returns[0].outs[0].kind == Out::kNew) {
    const Out& out = returns[0].outs[0];
    torch::jit::drop(*stack, arguments);
    stack->emplace_back(make_tensor(new_storage(out.bytes, in_segment), out));
    return;
  }
  c10::SmallVector<c10::Storage, 4> created;
  c10::SmallVector<IValue, 4> results;
  for (const auto& r : returns) {
    if (r.kind == Return::kTensor) results.emplace_back(make_result(r.outs[0], key, created, in_segment));
    else if (r.kind == Return::kValue) results.push_back(r.value);
    else {
      std::vector<Tensor> list;
      for (const auto& out : r.outs) list.push_back(make_result(out, key, created, in_segment));
      results.emplace_back(list);
    }
  }
  torch::jit::drop(*stack, arguments);
  for (auto& result : results) stack->push_back(std::move(result));
}

}  // namespace edge_offload
