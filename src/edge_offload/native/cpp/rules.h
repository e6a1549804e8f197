// Rules for operators whose meta kernels, some of them approximations in Python, give other strides than the CPU kernels. The
// rules call the code of the CPU kernels. device/conformance/shapes.py determines in which layouts they are correct.
#pragma once
#include "shapes.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/TensorIterator.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/ops/_fused_sdp_choice.h>

namespace edge_offload {

// Layout of the operands of a call: the greatest of their layouts in this order. Sets of layouts are sums. Complex operands
// are a layout of their own, because their kernels differ.
enum Layout : uint8_t { kRows = 1, kChannelsLast = 2, kDense = 4, kGaps = 8, kEmpty = 16, kComplex = 32 };
// Ways to infer results: the meta kernel; a rule, or else torch's iterator over the operands; the iterator over operands and
// numbers among the arguments, which some operators turn into tensors.
enum Way { kMeta, kRule, kNumbers, kWays };

inline Layout layout_of(const Tensor& t) {
  if (t.is_complex()) return kComplex;
  if (t.numel() == 0) return kEmpty;
  const auto strides = t.strides();
  int64_t stride = 1, i = t.dim() - 1;
  for (; i >= 0 && strides[i] == stride; --i) stride *= t.size(i);
  if (i < 0) return kRows;
  if (t.dim() == 4 && strides == c10::IntArrayRef(c10::get_channels_last_strides_2d(t.sizes()))) return kChannelsLast;
  if (t.dim() == 5 && strides == c10::IntArrayRef(c10::get_channels_last_strides_3d(t.sizes()))) return kChannelsLast;
  return t.unsafeGetTensorImpl()->is_non_overlapping_and_dense() ? kDense : kGaps;
}
inline Layout layout_of(const Key& key) {
  Layout layout = kRows;
  for (const auto* t : key.tensors) layout = std::max(layout, layout_of(*t));
  return layout;
}

// Layouts in which a way must be correct for a call. Kernels may keep or change the strides of dimensions of one element.
// So a dense operand with such a dimension needs a way that is correct with gaps, too.
inline uint8_t layouts_needed(const Key& key) {
  uint8_t needed = layout_of(key);
  if (needed == kDense)
    for (const auto* t : key.tensors)
      if (layout_of(*t) == kDense && std::count(t->sizes().begin(), t->sizes().end(), 1)) needed |= kGaps;
  return needed;
}

// Host tensor without memory, for code that reads only metadata.
inline Tensor hollow(const Tensor& t) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), t.storage().nbytes(), c10::DataPtr(nullptr, c10::Device(c10::kCPU)), nullptr, false);
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU), t.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(t.sizes(), t.strides(), t.storage_offset());
  return made;
}
inline optional<Tensor> hollow(const IValue& v) {
  return v.isTensor() && v.toTensor().defined() ? optional<Tensor>(hollow(v.toTensor())) : nullopt;
}

inline void lay(Out& out, c10::IntArrayRef strides) {
  out.strides = c10::SmallVector<int64_t, 5>(strides.begin(), strides.end());
  out.bytes = at::detail::computeStorageNbytes(out.sizes, out.strides, c10::elementSize(out.type));
}
inline void lay(Out& out, at::MemoryFormat format) {
  if (format == at::MemoryFormat::ChannelsLast) return lay(out, c10::get_channels_last_strides_2d(out.sizes));
  if (format == at::MemoryFormat::ChannelsLast3d) return lay(out, c10::get_channels_last_strides_3d(out.sizes));
  c10::SmallVector<int64_t, 5> strides(out.sizes.size(), 1);
  for (size_t i = strides.size(); i-- > 1;) strides[i - 1] = strides[i] * std::max<int64_t>(out.sizes[i], 1);
  lay(out, strides);
}

// Strides of an element-wise result by torch's iterator over all operands; `numbers`: operands that are no tensors.
inline bool elementwise(const Key& key, size_t numbers, std::vector<Return>& returns) {
  auto& out = returns[0].outs[0];
  at::TensorIteratorConfig config;
  config.set_check_mem_overlap(false).check_all_same_dtype(false).resize_outputs(true).add_owned_output(Tensor());
  config.declare_static_dtype_and_device(out.type, c10::kMeta);
  const auto add = [&](c10::IntArrayRef sizes, c10::IntArrayRef strides, int64_t bytes) {
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, c10::Device(c10::kMeta)), nullptr, false);
    auto meta = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::Meta),
                                                         c10::scalarTypeToTypeMeta(out.type));
    meta.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
    config.add_owned_input(meta);
  };
  for (const auto* t : key.tensors) add(t->sizes(), t->strides(), t->storage().nbytes());
  for (size_t i = 0; i < numbers; ++i) add({}, {}, c10::elementSize(out.type));
  const auto iterator = config.build();
  const auto& made = iterator.tensor_base(0);
  if (made.sizes() != c10::IntArrayRef(out.sizes)) return false;
  lay(out, made.strides());
  return true;
}
inline size_t numbers_of(const c10::FunctionSchema& schema) {
  size_t count = 0;
  for (const auto& argument : schema.arguments()) count += argument.type()->kind() == c10::TypeKind::NumberType && !argument.kwarg_only();
  return count;
}

// Metadata of statistics saved with a normalised result: its dtype, or float if a parameter is float.
inline void as_saved(Out& out, const Tensor& input, const Stack& stack, size_t from, size_t to) {
  out.type = input.scalar_type();
  for (size_t i = from; i < to; ++i)
    if (stack[i].isTensor() && stack[i].toTensor().defined() && stack[i].toTensor().scalar_type() == at::kFloat) out.type = at::kFloat;
  lay(out, at::MemoryFormat::Contiguous);
}

using Rule = bool (*)(const Stack& stack, size_t first, std::vector<Return>& returns);

inline bool convolution(const Stack& stack, size_t first, std::vector<Return>& returns) {
  Tensor input = hollow(stack[first].toTensor()), weight = hollow(stack[first + 1].toTensor());
  const auto stride = stack[first + 3].toIntVector(), padding = stack[first + 4].toIntVector(), dilation = stack[first + 5].toIntVector(),
             output_padding = stack[first + 7].toIntVector();
  const int64_t groups = stack[first + 8].toInt();
  const bool flat = input.dim() == 3;  // computed with a height of one, on a copy if needed
  if (flat) input.unsafeGetTensorImpl()->set_sizes_contiguous(input.sizes().vec());
  const auto backend = at::native::select_conv_backend(input, weight, hollow(stack[first + 2]), since_2_2::strides(stride),
      c10::fromIntArrayRefSlow(padding), since_2_2::strides(dilation), stack[first + 6].toBool(),
      c10::fromIntArrayRefSlow(output_padding), groups, nullopt);
  auto& out = returns[0].outs[0];
  if (flat) {
    const auto lift = [](Tensor& t, int64_t height) {
      const auto sizes = t.sizes().vec(), strides = t.strides().vec();
      t.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef({sizes[0], sizes[1], 1, sizes[2]}),
                                                     c10::IntArrayRef({strides[0], strides[1], height, strides[2]}));
    };
    lift(input, input.size(2));
    lift(weight, weight.size(2) * weight.stride(2));
    out.sizes.insert(out.sizes.begin() + 2, 1);
  }
  const auto format = at::native::_determine_backend_memory_format(input, weight, backend);
  lay(out, format);
  if (flat) {
    out.sizes.erase(out.sizes.begin() + 2);
    out.strides.erase(out.strides.begin() + 2);
  }
  const bool handles_groups = backend == at::native::ConvBackend::Mkldnn || backend == at::native::ConvBackend::MkldnnTranspose;
  return handles_groups || groups == 1 || format == at::MemoryFormat::Contiguous;  // else groups are concatenated
}
inline bool batch_norm(const Stack& stack, size_t first, std::vector<Return>& returns) {
  const auto& input = stack[first].toTensor();
  const auto contiguous = [](const Tensor& t) {
    return t.is_contiguous() || t.is_contiguous(at::MemoryFormat::ChannelsLast) || t.is_contiguous(at::MemoryFormat::ChannelsLast3d);
  };
  bool all = contiguous(input);
  for (size_t i = 1; i < 5; ++i)
    if (stack[first + i].isTensor() && stack[first + i].toTensor().defined()) all = all && stack[first + i].toTensor().is_contiguous();
  auto& out = returns[0].outs[0];
  out.sizes.assign(input.sizes().begin(), input.sizes().end());
  lay(out, all && !input.is_contiguous() ? input.suggest_memory_format() : at::MemoryFormat::Contiguous);
  for (size_t i = 1; i < 3; ++i) {
    returns[i].outs[0].sizes = {stack[first + 5].toBool() ? input.size(1) : 0};  // saved only in training
    as_saved(returns[i].outs[0], input, stack, first + 1, first + 5);
  }
  return true;
}
inline bool layer_norm(const Stack& stack, size_t first, std::vector<Return>& returns) {
  lay(returns[0].outs[0], at::MemoryFormat::Contiguous);
  for (size_t i = 1; i < 3; ++i) as_saved(returns[i].outs[0], stack[first].toTensor(), stack, first + 2, first + 4);
  return true;
}
inline bool attention(const Stack& stack, size_t first, std::vector<Return>& returns) {
  const auto query = hollow(stack[first].toTensor()), key = hollow(stack[first + 1].toTensor()), value = hollow(stack[first + 2].toTensor());
  Stack arguments{query, key, value, hollow(stack[first + 3])};
  arguments.insert(arguments.end(), stack.begin() + first + 4, stack.end());
  static const auto choice = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_fused_sdp_choice", "");
  choice.callBoxed(&arguments);
  constexpr int64_t kFlash = 1;  // at::SDPBackend::flash_attention
  if (arguments.back().toInt() != kFlash) return true;
  const bool dense = query.unsafeGetTensorImpl()->is_non_overlapping_and_dense();
  lay(returns[0].outs[0], dense ? query.strides().vec() : at::infer_dense_strides(query.sizes(), query.strides()));
  return true;
}

inline bool as_suggested(const Stack& stack, size_t first, std::vector<Return>& returns) {
  lay(returns[0].outs[0], stack[first].toTensor().suggest_memory_format());
  return true;
}

inline Rule rule_of(const c10::FunctionSchema& schema) {
  static const std::unordered_map<std::string, Rule> rules = {{"aten::_convolution", &convolution}, {"aten::native_batch_norm", &batch_norm},
      {"aten::native_layer_norm", &layer_norm}, {"aten::scaled_dot_product_attention", &attention},
      {"aten::group_norm", &as_suggested}, {"aten::upsample_nearest2d", &as_suggested}, {"aten::upsample_bilinear2d", &as_suggested},
      {"aten::upsample_bicubic2d", &as_suggested}, {"aten::upsample_nearest3d", &as_suggested},
      {"aten::upsample_trilinear3d", &as_suggested}, {"aten::_upsample_nearest_exact2d", &as_suggested}};
  const auto rule = schema.overload_name().empty() ? rules.find(schema.name()) : rules.end();
  return rule == rules.end() ? nullptr : rule->second;
}

// Infers the results of a call in one way; false if it cannot. Inference::exact says where that is correct.
inline bool infer_results(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key, int way, std::vector<Return>* returns) {
  const auto& schema = op.schema();
  const Rule rule = rule_of(schema);
  const size_t numbers = way == kNumbers ? numbers_of(schema) : 0;
  if (way != kMeta && !(rule && way == kRule) && !(op.hasTag(at::Tag::pointwise) && (way == kRule || numbers))) return false;
  const Busy busy;
  const c10::impl::ExcludeDispatchKeyGuard no_modes(c10::DispatchKeySet({c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot}));
  try {
    *returns = MetaRun().run(op, stack, first, key);
    if (way == kMeta) return true;
    if (rule) return rule(stack, first, *returns);
    const bool one = returns->size() == 1 && (*returns)[0].kind == Return::kTensor && (*returns)[0].outs[0].kind == Out::kNew;
    return one && elementwise(key, key.numbers.size() + numbers, *returns);
  } catch (const std::exception&) {
    const py::gil_scoped_acquire gil;
    PyErr_Clear();  // a meta kernel in Python may have raised
    return false;
  }
}

}  // namespace edge_offload
