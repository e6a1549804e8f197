// Computing here without boxing: for the operators that most calls of most networks are, whose lists and many results
// make boxing dear.
#pragma once
#include "dispatch.h"

namespace edge_offload {

inline Tensor taken(Computing& computing, const Tensor& t) { return computing.take(t); }
inline std::optional<Tensor> taken(Computing& computing, const std::optional<Tensor>& t) {
  return t && t->defined() ? std::optional<Tensor>(computing.take(*t)) : t;
}
template <typename T>
inline const T& taken(Computing&, const T& value) { return value; }

inline void put(Key& key, const Tensor& t) { key.tensor(t); }
inline void put(Key& key, const std::optional<Tensor>& t) { if (t) key.tensor(*t); else key.tag('N'); }
inline void put(Key& key, bool value) { key.tag('B'); key.put(static_cast<uint8_t>(value)); }
inline void put(Key& key, double value) { key.tag('F'); key.put(value); }
inline void put(Key& key, const c10::SymInt& value) { key.tag('I'); key.put(value.expect_int()); }
inline void put(Key& key, c10::SymIntArrayRef list) {
  key.tag('V'); key.put(static_cast<uint32_t>(list.size()));
  for (const auto& item : list) key.put(item.expect_int());
}

inline Tensor given(Computing& computing, const Tensor& host, bool in_segment) { return computing.wrap(host, in_segment); }
template <typename... T>
inline std::tuple<T...> given(Computing& computing, const std::tuple<T...>& hosts, bool in_segment) {
  return std::apply([&](const auto&... host) { return std::tuple<T...>{computing.wrap(host, in_segment)...}; }, hosts);
}

template <typename Signature>
struct Direct;
template <typename Return, typename First, typename... Rest>
struct Direct<Return(First, Rest...)> {
  static Return boxed_call(const c10::OperatorHandle& op, First first, Rest... rest) {
    Stack stack{IValue(first), IValue(rest)...};
    boxed(op, &stack);
    if constexpr (std::is_same_v<Return, Tensor>) return std::move(stack[0]).toTensor();
    else return {std::move(stack[0]).toTensor(), std::move(stack[1]).toTensor(), std::move(stack[2]).toTensor()};
  }

  static Return call(const c10::TypedOperatorHandle<Return(First, Rest...)>& op, bool writes, First first, Rest... rest) {
    auto& s = state();
    if (!s.here || writes || torch::jit::tracer::isTracing()) return boxed_call(op, first, rest...);
    std::optional<Hold> hold;
    bool noted = false;
    if (s.watched) {
      hold.emplace();
      if (!s.spoiled) {
        forget_if_many();
        Key key(&op.schema());
        put(key, first);
        (put(key, rest), ...);
        auto* entry = lookup(key);
        if (!entry || !entry->known || s.waiting || s.pending.words.empty()) return boxed_call(op, first, rest...);
        noted = note_or_wait(*entry, key) == Fate::kNoted;
      }
    }
    ++s.count_calls;
    Computing computing(op, facts_of(op));
    try {
      std::tuple<std::decay_t<decltype(taken(computing, first))>, std::decay_t<decltype(taken(computing, rest))>...> hosts{
          taken(computing, first), taken(computing, rest)...};
      computing.check_hosts(on_device(first));
      BelowAll below;
      return given(computing, std::apply([&](const auto&... host) {
        return computing.lazy() ? op.call(host...) : op.redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), host...);
      }, hosts), noted);
    } catch (...) { if (s.watched) give_up(""); throw; }
  }
};

using Convolution = Tensor(const Tensor&, const Tensor&, const std::optional<Tensor>&, c10::SymIntArrayRef, c10::SymIntArrayRef, c10::SymIntArrayRef,
                           bool, c10::SymIntArrayRef, c10::SymInt, bool, bool, bool, bool);
inline Tensor convolution(const Tensor& input, const Tensor& weight, const std::optional<Tensor>& bias, c10::SymIntArrayRef stride,
                          c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
                          c10::SymInt groups, bool benchmark, bool deterministic, bool cudnn, bool tf32) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::_convolution", "").typed<Convolution>();
  return Direct<Convolution>::call(op, false, input, weight, bias, stride, padding, dilation, transposed, output_padding, std::move(groups),
                                   benchmark, deterministic, cudnn, tf32);
}

using BatchNorm = std::tuple<Tensor, Tensor, Tensor>(const Tensor&, const std::optional<Tensor>&, const std::optional<Tensor>&,
                                                     const std::optional<Tensor>&, const std::optional<Tensor>&, bool, double, double);
inline std::tuple<Tensor, Tensor, Tensor> batch_norm(const Tensor& input, const std::optional<Tensor>& weight, const std::optional<Tensor>& bias,
                                                     const std::optional<Tensor>& mean, const std::optional<Tensor>& variance, bool training,
                                                     double momentum, double eps) {
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_batch_norm", "").typed<BatchNorm>();
  return Direct<BatchNorm>::call(op, training, input, weight, bias, mean, variance, training, momentum, eps);
}

}  // namespace edge_offload
