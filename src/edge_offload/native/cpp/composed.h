// Tensors made of others: sparse ones (indices and values), and nested ones (a buffer and the sizes of its pieces).
//
// On the device they are torch's own, with parts that are tensors of the device. An operator on one of them is recorded as
// one call, edge_offload::composed(Tensor[] parts, int[] integers, str call) -> Tensor[]. The executor joins the parts, runs
// the operator and divides its results (composed.py). The call writes no argument: an argument that the operator writes is
// returned. `call` is JSON, [name, items], an item per argument; parts and integers follow in the order of items:
//   null, true, "text"          ["i"] an integer   ["v", count] a list of them   ["f", hex]   ["z", hex, hex]   ["d"] device
//   ["t"] a tensor              ["w"] the number in a tensor                     ["l", [items]]
//   ["o", dims, sparse dims, coalesced] indices, values; sizes      ["c", layout, dims] compressed and plain indices, values; sizes
//   ["n", pieces, dims] buffer; sizes of each piece
// The first results are tensors without elements. Their sizes, except each first one, are numbers: their count, then per result
//   0 none   1 tensor   2 dims, sparse dims, coalesced, sizes   3 layout, dims, sizes   4 pieces, dims, sizes   5 count, results
// and before a written argument: 1 if the operator wrote into the existing values, else 0.
#pragma once
#include "dispatch.h"

#include <ATen/NestedTensorImpl.h>
#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/empty.h>

namespace edge_offload {

constexpr size_t kNumbersInATensor = 60;  // also in composed.py
inline c10::DispatchKey host_key(c10::DispatchKey key) {
  if (key == c10::DispatchKey::SparseCUDA) return c10::DispatchKey::SparseCPU;
  return key == c10::DispatchKey::SparseCsrCUDA ? c10::DispatchKey::SparseCsrCPU : c10::DispatchKey::NestedTensorCPU;
}

inline bool is_compressed(at::Layout layout) {
  return layout == at::kSparseCsr || layout == at::kSparseCsc || layout == at::kSparseBsr || layout == at::kSparseBsc;
}
inline bool is_composed(const Tensor& t) { return t.layout() != at::kStrided || t.is_nested(); }
inline at::SparseTensorImpl* coo_of(const Tensor& t) { return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl()); }
inline at::SparseCsrTensorImpl* compressed_of(const Tensor& t) { return static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl()); }
inline at::native::NestedTensorImpl* nested_of(const Tensor& t) { return static_cast<at::native::NestedTensorImpl*>(t.unsafeGetTensorImpl()); }

// Divides the arguments of a call into parts, integers and a description.
class ArgumentDivider {
 public:
  std::vector<Tensor> parts;
  std::vector<int64_t> integers;
  std::string text;

  explicit ArgumentDivider(const c10::OperatorHandle& op) : schema_(op.schema()) {
    text = "[\"" + c10::toString(op.operator_name()) + "\", [";
  }
  void argument(const IValue& v) {
    if (text.back() != '[') text += ", ";
    value(v);
  }
  void end() { text += "]]"; }

 private:
  const c10::FunctionSchema& schema_;

  void value(const IValue& v) {
    if (v.isTensor()) tensor(v.toTensor());
    else if (v.isNone()) text += "null";
    else if (v.isBool()) text += v.toBool() ? "true" : "false";
    else if (v.isInt()) { text += "[\"i\"]"; integers.push_back(v.toInt()); }
    else if (v.isDouble()) { text += "[\"f\", " + hex(v.toDouble()) + "]"; }
    else if (v.isComplexDouble()) { const auto z = v.toComplexDouble(); text += "[\"z\", " + hex(z.real()) + ", " + hex(z.imag()) + "]"; }
    else if (v.isString()) {
      for (const unsigned char c : v.toStringRef()) TORCH_CHECK(c >= ' ' && c != '"' && c != '\\', "edge_offload: ", schema_.name(), " takes a word, not '", v.toStringRef(), "'");
      text += "\"" + v.toStringRef() + "\"";
    }
    else if (v.isDevice()) {
      TORCH_CHECK(v.toDevice().type() == kDevice && v.toDevice().index() <= 0,
                  "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
      text += "[\"d\"]";
    }
    else if (v.isIntList()) {
      text += "[\"v\", " + std::to_string(v.toListRef().size()) + "]";
      for (const IValue& item : v.toListRef()) integers.push_back(item.toInt());
    }
    else if (v.isList()) {
      text += "[\"l\", [";
      for (const IValue& item : v.toListRef()) argument(item);
      text += "]]";
    }
    else refuse("takes an argument of type " + v.tagKind() + ", which cannot be sent to the server");
  }
  void tensor(const Tensor& t) {
    if (!t.defined()) { text += "null"; return; }
    if (!on_device(t)) { host(t); return; }
    if (t.is_nested()) {
      auto* nested = nested_of(t);
      if (!at::native::nested_tensor_impl_is_contiguous(nested)) refuse("takes a nested tensor that is not contiguous; call .contiguous() first");
      const auto sizes = since_2_1::nested_sizes(nested);
      text += "[\"n\", " + std::to_string(sizes.dim() ? sizes.size(0) : 0) + ", " + std::to_string(sizes.dim() > 1 ? sizes.size(1) : 0) + "]";
      for (int64_t i = 0; i < sizes.numel(); ++i) integers.push_back(sizes.data_ptr<int64_t>()[i]);
      parts.push_back(nested->get_buffer());
    } else if (t.layout() == at::kSparse) {
      auto* coo = coo_of(t);
      text += "[\"o\", " + std::to_string(t.dim()) + ", " + std::to_string(coo->sparse_dim()) + (coo->coalesced() ? ", true]" : ", false]");
      sizes_of(t);
      parts.push_back(coo->indices());
      parts.push_back(coo->values());
    } else if (is_compressed(t.layout())) {
      auto* compressed = compressed_of(t);
      text += "[\"c\", " + std::to_string(static_cast<int>(t.layout())) + ", " + std::to_string(t.dim()) + "]";
      sizes_of(t);
      parts.push_back(compressed->compressed_indices());
      parts.push_back(compressed->plain_indices());
      parts.push_back(compressed->values());
    } else {
      text += "[\"t\"]";
      parts.push_back(t);
    }
  }
  void host(const Tensor& t) {
    TORCH_CHECK(!is_composed(t) && t.dim() == 0 && t.device().is_cpu(),
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and ", t.device(), "! (in ", schema_.name(), ")");
    text += t.unsafeGetTensorImpl()->is_wrapped_number() ? "[\"w\"]" : "[\"t\"]";
    parts.push_back(t.clone());  // the clone is no wrapped number: it counts as a tensor
  }
  void sizes_of(const Tensor& t) { integers.insert(integers.end(), t.sizes().begin(), t.sizes().end()); }
  static std::string hex(double value) {
    char buffer[64];
    std::snprintf(buffer, sizeof(buffer), "\"%a\"", value);
    return buffer;
  }
  [[noreturn]] void refuse(const std::string& why) const { TORCH_CHECK_NOT_IMPLEMENTED(false, "operator '", schema_.name(), "' ", why, " (edge_offload)"); }
};

// Makes the results of a call from the parts that the executor returned.
class ResultJoiner {
 public:
  explicit ResultJoiner(std::vector<Tensor> results) : results_(std::move(results)) {
    size_t count = 1;
    while (numbers_.size() < count) {
      const auto sizes = part().sizes();
      TORCH_CHECK(sizes.size() > 1, "edge_offload: the server did not say what it returned");
      numbers_.insert(numbers_.end(), sizes.begin() + 1, sizes.end());
      count = numbers_[0];
    }
    next_ = 1;
  }
  IValue value() {
    const auto kind = number();
    if (kind != 5) return tensor(kind);
    c10::List<Tensor> list;
    const auto count = number();
    for (int64_t i = 0; i < count; ++i) list.push_back(tensor(number()));
    return list;
  }
  int64_t number() { return numbers_.at(next_++); }

 private:
  std::vector<Tensor> results_;
  std::vector<int64_t> numbers_;
  size_t part_ = 0, next_ = 0;

  const Tensor& part() { return results_.at(part_++); }
  std::vector<int64_t> numbers(int64_t count) {
    std::vector<int64_t> some;
    for (int64_t i = 0; i < count; ++i) some.push_back(number());
    return some;
  }
  Tensor tensor(int64_t kind) {
    if (kind == 0) return Tensor();
    if (kind == 1) return part();
    if (kind == 2) {
      const auto dims = number(), sparse = number(), coalesced = number();
      const auto sizes = numbers(dims);
      const auto indices = part(), values = part();
      auto made = at::detail::make_tensor<at::SparseTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparseCUDA), values.dtype());
      coo_of(made)->resize_(sparse, dims - sparse, c10::IntArrayRef(sizes));
      coo_of(made)->set_indices_and_values_unsafe(indices, values);
      coo_of(made)->set_coalesced(coalesced != 0);
      return made;
    }
    if (kind == 3) {
      const auto layout = static_cast<at::Layout>(number());
      const auto sizes = numbers(number());
      const auto compressed = part(), plain = part(), values = part();
      auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(c10::DispatchKeySet(c10::DispatchKey::SparseCsrCUDA), values.device(), layout, values.dtype());
      compressed_of(made)->set_member_tensors(compressed, plain, values, c10::IntArrayRef(sizes));
      return made;
    }
    TORCH_CHECK(kind == 4, "edge_offload: the server returned a tensor of a kind that is not known");
    const auto pieces = number(), dims = number();
    const auto sizes = numbers(pieces * dims);
    auto table = at::empty({pieces, dims}, at::TensorOptions().dtype(at::kLong).device(at::kCPU));
    std::copy(sizes.begin(), sizes.end(), table.data_ptr<int64_t>());
    return at::detail::make_tensor<at::native::NestedTensorImpl>(part(), table);
  }
};

// Writes `result` to `self`: into its parts, which other tensors may share, or by replacing them.
inline void become(const Tensor& self, const Tensor& result, bool in_parts) {
  if (!is_composed(self)) {
    if (self.sizes() != result.sizes()) self.resize_(result.sizes());
    self.copy_(result);
  } else if (self.is_nested()) {
    nested_of(self)->get_buffer().copy_(nested_of(result)->get_buffer());
  } else if (self.layout() == at::kSparse) {
    auto *to = coo_of(self), *from = coo_of(result);
    if (in_parts) to->values().copy_(from->values());
    else {
      to->resize_(from->sparse_dim(), from->dense_dim(), result.sizes());
      to->set_indices_and_values_unsafe(from->indices(), from->values());
    }
    to->set_coalesced(from->coalesced());
  } else if (in_parts) compressed_of(self)->values().copy_(compressed_of(result)->values());
  else {
    const auto* from = compressed_of(result);
    compressed_of(self)->set_member_tensors(from->compressed_indices(), from->plain_indices(), from->values(), result.sizes());
  }
}

// Kernel of every operator that takes or returns such a tensor.
inline void composed(const c10::OperatorHandle& op, Stack* stack) {
  static const auto call = c10::Dispatcher::singleton().findSchemaOrThrow("edge_offload::composed", "");
  const auto& schema = op.schema();
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  check_version(op);
  ArgumentDivider divider(op);
  std::vector<IValue> written;
  for (size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) written.push_back((*stack)[first + i]);
    divider.argument((*stack)[first + i]);
  }
  divider.end();
  Stack inner{std::move(divider.parts), std::move(divider.integers), std::move(divider.text)};
  call.redispatchBoxed(c10::DispatchKeySet(kKey), &inner);
  ResultJoiner joiner(inner.back().toTensorVector());
  torch::jit::drop(*stack, count);
  for (const auto& v : written) {
    const bool in_parts = joiner.number() != 0;
    become(v.toTensor(), joiner.value().toTensor(), in_parts);
  }
  for (size_t i = 0; i < schema.returns().size(); ++i) stack->push_back(written.empty() ? joiner.value() : written.at(i));
}

// Kernel of operators that only access the parts: torch's code for the host works for any device.
template <c10::DispatchKey kHost>
void as_on_host(const c10::OperatorHandle& op, Stack* stack) { op.redispatchBoxed(c10::DispatchKeySet(kHost), stack); }

// Operators on tensors of the device that return one, and some that do not check their arguments (composed.py does).
inline bool sent_composed(const std::string& name) {
  static const std::unordered_set<std::string> names = {"_nested_tensor_from_mask", "_nested_from_padded", "_log_softmax_backward_data",
      "_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"};
  return name.rfind("_to_sparse", 0) == 0 || names.count(name);
}
inline void put_composed(const std::function<torch::Library&(c10::DispatchKey)>& library, const c10::OperatorHandle& op, const std::string& name) {
  static const std::unordered_set<std::string> coo = {"empty.memory_format", "_sparse_coo_tensor_with_dims",
      "_sparse_coo_tensor_with_dims_and_tensors", "sparse_resize_", "sparse_resize_and_clear_", "sparse_dim", "dense_dim", "_dimI", "_dimV",
      "_nnz", "is_coalesced", "_indices", "_values", "_coalesced_", "indices", "values", "copy_sparse_to_sparse_", "copy_", "clone", "resize_as_sparse_"};
  static const std::unordered_set<std::string> compressed = {"empty.memory_format", "_nnz", "sparse_dim", "dense_dim", "values", "crow_indices",
      "col_indices", "ccol_indices", "row_indices", "copy_", "clone", "empty_like"};
  static const std::unordered_set<std::string> nested = {"_nested_tensor_size", "_nested_tensor_strides", "_nested_tensor_storage_offsets",
      "detach", "alias", "values", "unbind.int", "select.int", "transpose.int", "view", "reshape", "_reshape_alias", "squeeze", "squeeze.dim", "unsqueeze",
      "is_same_size", "empty_like", "_to_copy", "clone", "copy_", "size.int", "sym_size.int"};
  using Key = c10::DispatchKey;
  const auto put = [&](Key key, bool host, auto borrowed) {
    if (!op.hasKernelForDispatchKey(key) && !op.hasKernelForDispatchKey(host_key(key))) return;
    library(key).impl(name.c_str(), host ? std::move(borrowed) : torch::CppFunction::makeFromBoxedFunction<&composed>());
  };
  put(Key::SparseCUDA, coo.count(name), torch::CppFunction::makeFromBoxedFunction<&as_on_host<Key::SparseCPU>>());
  put(Key::SparseCsrCUDA, compressed.count(name), torch::CppFunction::makeFromBoxedFunction<&as_on_host<Key::SparseCsrCPU>>());
  put(Key::NestedTensorCUDA, nested.count(name), torch::CppFunction::makeFromBoxedFunction<&as_on_host<Key::NestedTensorCPU>>());
}

}  // namespace edge_offload
