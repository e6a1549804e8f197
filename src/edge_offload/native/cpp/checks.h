// Checks of calls: refuses those that a GPU refuses, and recognises results that are unknown before the call has run.
#pragma once
#include "state.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace edge_offload {

inline void check_host_array(const c10::FunctionSchema& schema, bool starts_on_device, int arrays) {
  // as on a GPU: a host number may join device tensors, a host array may not, except where torch itself moves it
  static const std::unordered_set<std::string> moves = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
      "aten::_unsafe_index_put", "aten::_index_put_impl_", "aten::tensor_split"};
  const bool packed = arrays == 1 && schema.overload_name() == "data";  // of a recurrent network: the sizes of its batches
  TORCH_CHECK(packed || moves.count(schema.name()),
              "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (in ", schema.name(), ")");
  TORCH_CHECK(starts_on_device, "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
}
inline void check_host_operands(const Key& key, const c10::FunctionSchema& schema) {
  if (key.host_arrays) check_host_array(schema, key.bytes[sizeof(void*)] == 'T', key.host_arrays);
}
inline void check_version(const c10::OperatorHandle& op) {
  const auto& refused = state().inference.refused;
  if (refused.empty()) return;
  auto refusal = refused.find(c10::toString(op.operator_name()));
  TORCH_CHECK_NOT_IMPLEMENTED(refusal == refused.end(), refusal->second, " (edge_offload)");
}
inline void check_written(const c10::FunctionSchema& schema, const Stack& stack, size_t first) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const auto& v = stack[first + i];
    if (alias && alias->isWrite() && v.isTensor() && v.toTensor().defined() && !on_device(v.toTensor()))
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                  schema.name(), " cannot write its argument ", schema.arguments()[i].name(), " on the host)");
  }
}

inline bool has_dynamic_results(const c10::OperatorHandle& op, const Stack& stack, size_t first) {
  const auto& schema = op.schema();
  for (const auto& r : schema.returns()) {
    auto kind = r.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
  }
  const auto& name = schema.name();
  if (name.rfind("aten::", 0) != 0) return true;  // operators of other libraries have no such tags
  if (name == "aten::linalg_lstsq") return true;  // shapes depend on values, untagged
  if (!op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::data_dependent_output)) return false;
  if (name != "aten::index" && name != "aten::_unsafe_index") return true;
  for (const IValue& index : stack[first + 1].toListRef())  // only masks make the shape depend on data
    if (index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

inline bool plain(const Key& key) {  // true: no host arrays, and no lazily conjugated or negated operands, which meta kernels do not handle
  if (!key.payloads.empty()) return false;
  for (const auto* t : key.tensors)
    if (t->is_conj() || t->is_neg()) return false;
  return true;
}

inline void check_traceable(const c10::FunctionSchema& schema) {
  // torch.jit.trace records the parts of these and not the operators: their results would become constants of the trace
  static const std::unordered_set<std::string> unseen = {"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"};
  TORCH_CHECK_NOT_IMPLEMENTED(!unseen.count(schema.name()), "edge_offload: ", schema.name(),
                              " cannot be traced on the device; use torch.jit.script, or trace on the CPU");
}

}  // namespace edge_offload
