// Computes frequent operators in this process without boxing, by kernels with the operators' own signatures.
//
// Between two kernels of a network its feature maps fill the caches, so each line of memory or code that a call accesses is a
// cache miss: a boxed call takes 3 to 7 us there, and 1 us in a loop. These kernels put nothing on a stack and borrow host
// tensors without counting references. Code that does not depend on the operator is one function for all of them.
#pragma once
#include "dispatch.h"

#include <ATen/core/boxing/impl/boxing.h>
#include <torch/library.h>

#include <ATen/ops/_adaptive_avg_pool2d_ops.h>
#include <ATen/ops/_convolution_ops.h>
#include <ATen/ops/_softmax_ops.h>
#include <ATen/ops/add_ops.h>
#include <ATen/ops/addmm_ops.h>
#include <ATen/ops/avg_pool2d_ops.h>
#include <ATen/ops/baddbmm_ops.h>
#include <ATen/ops/bmm_ops.h>
#include <ATen/ops/cat_ops.h>
#include <ATen/ops/clamp_ops.h>
#include <ATen/ops/constant_pad_nd_ops.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/elu_ops.h>
#include <ATen/ops/exp_ops.h>
#include <ATen/ops/gelu_ops.h>
#include <ATen/ops/hardsigmoid_ops.h>
#include <ATen/ops/hardswish_ops.h>
#include <ATen/ops/hardtanh_ops.h>
#include <ATen/ops/leaky_relu_ops.h>
#include <ATen/ops/max_pool2d_with_indices_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/mish_ops.h>
#include <ATen/ops/mm_ops.h>
#include <ATen/ops/mul_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>
#include <ATen/ops/native_group_norm_ops.h>
#include <ATen/ops/native_layer_norm_ops.h>
#include <ATen/ops/pow_ops.h>
#include <ATen/ops/relu_ops.h>
#include <ATen/ops/rsqrt_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>
#include <ATen/ops/sigmoid_ops.h>
#include <ATen/ops/silu_ops.h>
#include <ATen/ops/softmax_ops.h>
#include <ATen/ops/sqrt_ops.h>
#include <ATen/ops/sub_ops.h>
#include <ATen/ops/sum_ops.h>
#include <ATen/ops/tanh_ops.h>
#include <ATen/ops/upsample_bilinear2d_ops.h>
#include <ATen/ops/upsample_nearest2d_ops.h>

namespace edge_offload {

inline void fetch_lines(const void* at, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(at) + i);
}

// Borrowed host tensors of a call's operands (null: undefined). False: the call has to be computed boxed.
struct Loan {
  const Tensor* const* mine;
  optional<Tensor>* hosts;
  size_t count;
  uint32_t lent = 0;

  Loan(const Tensor* const* mine, optional<Tensor>* hosts, size_t count) : mine(mine), hosts(hosts), count(count) {}
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  ~Loan() {  // the contexts own the borrowed tensors, and the caller holds the storages
    for (size_t i = 0; i < count; ++i)
      if (lent >> i & 1) hosts[i]->unsafeReleaseTensorImpl();
  }
  [[gnu::noinline, gnu::hot]] bool take() {
    for (size_t i = 0; i < count; ++i) {  // so that the cache misses of all operands overlap
      if (!mine[i]) continue;
      fetch_lines(mine[i]->unsafeGetTensorImpl(), sizeof(c10::TensorImpl));
      if (!mine[i]->has_storage()) return false;
      __builtin_prefetch(mine[i]->storage().unsafeGetStorageImpl());
    }
    for (size_t i = 0; i < count; ++i)
      if (mine[i] && on_device(*mine[i])) fetch_lines(context_of(mine[i]->storage().unsafeGetStorageImpl()), sizeof(Context));
    for (size_t i = 0; i < count; ++i)
      if (mine[i] && !take(i)) return false;
    return true;
  }

 private:
  bool take(size_t i) {
    const Tensor& t = *mine[i];
    auto* implementation = t.unsafeGetTensorImpl();
    if (t.layout() != at::kStrided || implementation->is_conj() || implementation->is_neg()) return false;
    if (!on_device(t)) {  // a host number; arrays are checked elsewhere
      if (!t.device().is_cpu() || t.dim() > 0) return false;
      hosts[i] = t;
      return true;
    }
    auto* seen = context_of(t.storage().unsafeGetStorageImpl())->find_host_tensor(implementation);
    if (!seen) { hosts[i] = host_of(t); return true; }
    hosts[i] = Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim(seen));
    lent |= 1u << i;
    return true;
  }
};

// Device tensor of a host result that is not new.
[[gnu::noinline, gnu::cold]] inline Tensor give_alias(const c10::OperatorHandle& op, const Loan& loan, const Tensor& host) {
  Computing computing(op, facts_of(op));
  for (size_t i = 0; i < loan.count; ++i) if (loan.mine[i]) computing.take(*loan.mine[i]);
  return computing.wrap(host, false);
}

// Tells whether a call of the operator can be computed without boxing.
template <typename Op>
struct Fits { template <typename... Args> static bool now(const Args&...) { return true; } };
template <>
struct Fits<at::_ops::native_batch_norm> {  // running averages are written
  template <typename... Args>
  static bool now(const Tensor&, const optional<Tensor>&, const optional<Tensor>&, const optional<Tensor>&,
                  const optional<Tensor>&, bool training, const Args&...) { return !training; }
};
template <>
struct Fits<at::_ops::scaled_dot_product_attention> {  // random numbers are drawn
  template <typename... Args>
  static bool now(const Tensor&, const Tensor&, const Tensor&, const optional<Tensor>&, double dropout, const Args&...) { return dropout == 0.0; }
};

template <typename T> constexpr bool kIsTensor = std::is_same_v<std::decay_t<T>, Tensor> || std::is_same_v<std::decay_t<T>, optional<Tensor>>;
inline const Tensor* operand(const Tensor& t) { return t.defined() ? &t : nullptr; }
inline const Tensor* operand(const optional<Tensor>& t) { return t && t->defined() ? &*t : nullptr; }

template <typename Op, typename Signature = typename Op::schema>
class Typed;
template <typename Op, typename Return, typename... Args>
class Typed<Op, Return(Args...)> {
 public:
  [[gnu::hot]] static Return call(Args... args) {
    Entered entered;
    if (!entered.at_once || !Fits<Op>::now(args...)) return general(args...);
    const Tensor* mine[kCount];
    size_t count = 0;
    (note(mine, count, args), ...);
    optional<Tensor> hosts[kCount];
    Loan loan(mine, hosts, kCount);
    if (!loan.take()) return general(args...);
    return compute(loan, std::index_sequence_for<Args...>(), args...);
  }
  [[gnu::noinline, gnu::cold]] static Return general(Args... args) {
    static const auto kernel = c10::BoxedKernel::makeFromFunction<&boxed>();
    return c10::impl::BoxedKernelWrapper<Return(Args...)>::call(kernel, op(), c10::DispatchKeySet(kKey), args...);
  }
  static const c10::OperatorHandle& op() {
    static const auto schema = c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    return schema;
  }

 private:
  static constexpr size_t kCount = (size_t(kIsTensor<Args>) + ...);
  static constexpr size_t before(size_t argument) {  // tensors among the arguments in front of this one
    constexpr bool tensor[] = {kIsTensor<Args>...};
    size_t count = 0;
    for (size_t i = 0; i < argument; ++i) count += tensor[i];
    return count;
  }
  template <typename T>
  static void note(const Tensor** mine, size_t& count, const T& argument) { if constexpr (kIsTensor<T>) mine[count++] = operand(argument); }
  template <size_t I, typename T>
  static decltype(auto) host(Loan& loan, T& argument) {
    if constexpr (std::is_same_v<std::decay_t<T>, Tensor>) return *loan.hosts[before(I)];
    else if constexpr (std::is_same_v<std::decay_t<T>, optional<Tensor>>) return static_cast<const optional<Tensor>&>(loan.hosts[before(I)]);
    else return static_cast<T&>(argument);
  }
  template <size_t... I>
  static Return compute(Loan& loan, std::index_sequence<I...>, Args... args) {
    ++state().count_calls;
    constexpr c10::DispatchKeySet cpu(c10::DispatchKey::CPU);
    if constexpr (std::is_same_v<Return, Tensor&>) {  // sizes and memory of the operand stay what they are
      Tensor& self = std::get<0>(std::tie(args...));
      if (!on_device(self)) return general(args...);
      if (state().watched) writes(self.storage().unsafeGetStorageImpl());
      BelowAll below;
      in_host_memory([&] { Op::redispatch(cpu, host<I>(loan, args)...); });
      return self;
    } else {
      BelowAll below;
      return give(loan, in_host_memory([&] { return Op::redispatch(cpu, host<I>(loan, args)...); }));
    }
  }
  static Tensor give(Loan& loan, Tensor&& result) { return is_fresh(result) ? give_fresh(std::move(result), false) : give_alias(op(), loan, result); }
  template <typename... T>
  static std::tuple<T...> give(Loan& loan, std::tuple<T...>&& result) {
    return std::apply([&](auto&... one) {
      return std::tuple<T...>{one.defined() && one.dim() == 1 && one.numel() == 0 ? empty_on_host(one.dtype()) : give(loan, std::move(one))...};
    }, result);
  }
};

// Borrowed tensors as an array.
struct Row {
  Loan& loan;
  c10::SmallVector<Tensor, 32> hosts;
  explicit Row(Loan& loan) : loan(loan) { for (size_t i = 0; i < loan.count; ++i) hosts.push_back(std::move(*loan.hosts[i])); }
  Row(const Row&) = delete;
  Row& operator=(const Row&) = delete;
  ~Row() { for (size_t i = 0; i < loan.count; ++i) *loan.hosts[i] = std::move(hosts[i]); }
};

inline Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  using Op = at::_ops::cat;
  constexpr size_t kMost = 32;
  Entered entered;
  if (!entered.at_once) return Typed<Op>::general(tensors, dim);
  const Tensor* mine[kMost];
  size_t count = 0;
  for (const Tensor& t : tensors) {
    if (count == kMost || !t.defined()) return Typed<Op>::general(tensors, dim);
    mine[count++] = &t;
  }
  optional<Tensor> lent[kMost];
  Loan loan(mine, lent, count);
  if (!loan.take()) return Typed<Op>::general(tensors, dim);
  ++state().count_calls;
  std::optional<Row> row(std::in_place, loan);
  BelowAll below;
  Tensor result = in_host_memory(
      [&] { return Op::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), at::ITensorListRef(at::ArrayRef<Tensor>(row->hosts)), dim); });
  row.reset();
  return is_fresh(result) ? give_fresh(std::move(result), false) : give_alias(Typed<Op>::op(), loan, result);
}

// Registers these kernels; returns the names of their operators.
inline std::unordered_set<std::string> put_typed(torch::Library& library) {
  std::unordered_set<std::string> names{"cat"};
  library.impl("cat", TORCH_FN(cat));
  namespace op = at::_ops;
  const auto put_one = [&](auto op) {
    using Op = decltype(op);
    const std::string overload = Op::overload_name, name = Op::name + 6 + (overload.empty() ? "" : "." + overload);
    library.impl(name.c_str(), TORCH_FN((&Typed<Op>::call)));
    names.insert(name);
  };
  const auto put = [&](auto... ops) { (put_one(ops), ...); };
  put(op::_convolution(), op::native_batch_norm(), op::native_layer_norm(), op::native_group_norm(), op::constant_pad_nd());
  put(op::relu(), op::hardswish(), op::hardsigmoid(), op::hardtanh(), op::silu(), op::mish(), op::gelu(), op::elu(), op::leaky_relu(), op::sigmoid(), op::tanh(), op::clamp());
  put(op::relu_(), op::hardswish_(), op::hardsigmoid_(), op::hardtanh_(), op::silu_(), op::mish_(), op::elu_(), op::leaky_relu_(), op::sigmoid_(), op::clamp_());
  put(op::add_Tensor(), op::sub_Tensor(), op::mul_Tensor(), op::div_Tensor(), op::pow_Tensor_Scalar(), op::exp(), op::sqrt(), op::rsqrt());
  put(op::add__Tensor(), op::sub__Tensor(), op::mul__Tensor(), op::div__Tensor());
  put(op::mean_dim(), op::sum_dim_IntList(), op::max_pool2d_with_indices(), op::avg_pool2d(), op::_adaptive_avg_pool2d());
  put(op::upsample_nearest2d(), op::upsample_bilinear2d());
  put(op::mm(), op::addmm(), op::bmm(), op::baddbmm(), op::_softmax(), op::softmax_int(), op::scaled_dot_product_attention());
  return names;
}

}  // namespace edge_offload
