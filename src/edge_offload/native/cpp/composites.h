// Operators that torch composes of others, differently on a GPU and on a CPU. They are recorded as one call, so that the
// executing device chooses. Results have the strides of a GPU's. If gradients are needed, the parts are recorded.
#pragma once
#include "dispatch.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/group_norm.h>
#include <ATen/ops/group_norm_native.h>

namespace edge_offload {

inline const std::vector<std::string>& recorded_whole() {
  static const std::vector<std::string> names = {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
      "rnn_relu.input", "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
      "softmax.int", "log_softmax.int", "dropout", "dropout_", "ctc_loss.Tensor", "ctc_loss.IntList", "group_norm",
      "silu_backward", "mish_backward", "native_channel_shuffle", "_fused_rms_norm"};  // have CPU kernels beside the composite
  return names;
}

// Operators with cuDNN kernels on a GPU that none of their parts uses. A CPU computes the parts.
inline const std::vector<std::string>& whole_on_gpu() {
  static const std::vector<std::string> names = {"batch_norm", "instance_norm", "grid_sampler"};
  return names;
}

inline bool wants_gradient(const IValue& v) {
  if (v.isTensor()) return v.toTensor().defined() && v.toTensor().requires_grad();
  if (v.isTensorList())
    for (const IValue& item : v.toListRef())
      if (wants_gradient(item)) return true;
  return false;
}
// Kernel above autograd. torch registers the composite implementation for backends without kernels.
inline void whole_or_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  if (at::GradMode::is_enabled() && std::any_of(stack->begin() + first, stack->end(), [](const IValue& v) { return wants_gradient(v); }))
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradXLA), stack);
  else
    op.redispatchBoxed(keys & c10::after_autograd_keyset, stack);
}

// Parts of an operator: torch registers them for backends without kernels.
inline void parts(const c10::OperatorHandle& op, Stack* stack) { op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::AutogradXLA), stack); }
inline void whole_on_gpu_or_parts(const c10::OperatorHandle& op, c10::DispatchKeySet keys, Stack* stack) {
  if (state().inference.gpu) whole_or_parts(op, keys, stack);
  else parts(op, stack);
}
inline void boxed_on_gpu(const c10::OperatorHandle& op, Stack* stack) {
  if (state().inference.gpu) boxed(op, stack);
  else parts(op, stack);
}

// Cells of recurrent networks if gradients are needed: fused on a GPU; a CPU computes these parts.
inline Tensor with_bias(const Tensor& gates, const optional<Tensor>& bias) { return bias && bias->defined() ? gates + *bias : gates; }
inline std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& input, const Tensor& hidden, const Tensor& cx,
                                                    const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto gates = (with_bias(hidden, hidden_bias) + with_bias(input, input_bias)).unsafe_chunk(4, 1);
  const auto cy = gates[1].sigmoid() * cx + gates[0].sigmoid() * gates[2].tanh();
  return {gates[3].sigmoid() * cy.tanh(), cy, Tensor()};
}
inline std::tuple<Tensor, Tensor> gru_cell(const Tensor& input, const Tensor& hidden, const Tensor& hx,
                                           const optional<Tensor>& input_bias, const optional<Tensor>& hidden_bias) {
  const auto ours = with_bias(input, input_bias).unsafe_chunk(3, 1), theirs = with_bias(hidden, hidden_bias).unsafe_chunk(3, 1);
  const auto reset = (theirs[0] + ours[0]).sigmoid(), update = (theirs[1] + ours[1]).sigmoid();
  const auto fresh = (ours[2] + theirs[2] * reset).tanh();
  return {(hx - fresh) * update + fresh, Tensor()};
}

// Group normalisation of channels-last tensors: a CPU computes without a copy, a GPU copies first. Bits as of a CPU, strides
// as of a GPU.
inline Tensor group_norm(const Tensor& input, int64_t groups, const optional<Tensor>& weight, const optional<Tensor>& bias,
                         double eps, bool cudnn) {
  if (input.suggest_memory_format() == at::MemoryFormat::Contiguous) return at::native::group_norm(input, groups, weight, bias, eps, cudnn);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::group_norm", "");
  Stack stack{input, groups, weight, bias, eps, cudnn};
  boxed(op, &stack);
  return stack.back().toTensor().contiguous();
}

}  // namespace edge_offload
