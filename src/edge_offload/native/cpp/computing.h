// Computes one call of the device in this process, on host tensors over the memory behind its storages.
#pragma once
#include "checks.h"
#include "memory.h"
#include "results.h"

namespace edge_offload {

struct Facts {  // of an operator, cached
  bool writes = false;
  bool random = false;
  bool steps = false;                      // step of an optimizer, whose numbers change every time
  int generator = -1;                      // position of the generator argument; -1: none
  int train = -1;                          // position of an argument that is false if nothing is drawn; -1: none
  int statistics = -1;                     // position of two arguments that are written if the one behind them is true; -1: none
  c10::SmallVector<uint32_t, 2> written;   // positions of arguments that are written
};
inline const Facts& facts_of(const c10::OperatorHandle& op) {
  static thread_local std::unordered_map<const c10::FunctionSchema*, Facts> cache;
  const auto& schema = op.schema();
  auto cached = cache.find(&schema);
  if (cached != cache.end()) return cached->second;
  Facts facts;
  facts.random = op.hasTag(at::Tag::nondeterministic_seeded);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto& argument = schema.arguments()[i];
    if (argument.name() == "generator") facts.generator = i;
    if (argument.name() == "train") facts.train = i;
    if (argument.alias_info() && argument.alias_info()->isWrite()) { facts.writes = true; facts.written.push_back(i); }
  }
  const auto& name = schema.name();
  facts.steps = facts.writes && (name.rfind("aten::_foreach_", 0) == 0 || name.rfind("aten::_fused_", 0) == 0 || name == "aten::addcdiv_" || name == "aten::add_");
  if (schema.name() == "aten::native_batch_norm" || schema.name() == "aten::batch_norm" || schema.name() == "aten::instance_norm")
    facts.statistics = 3;
  return cache.emplace(&schema, std::move(facts)).first->second;
}

// Returns true if nothing else refers to a host result or its memory.
inline bool is_fresh(const Tensor& host) {
  return host.defined() && host.use_count() == 1 && host.has_storage() && host.storage().use_count() == 1 &&
         host.layout() == at::kStrided && host.device().is_cpu() && !host.is_quantized() && !host.is_nested() && !host.is_conj() && !host.is_neg();
}
// Makes a device tensor of such a result.
[[gnu::noinline, gnu::hot]] inline Tensor give_fresh(Tensor&& host, bool in_segment) {
  auto* mine = host.unsafeGetTensorImpl();
  auto* context = new_context(in_segment, host.storage().nbytes());
  c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), context->bytes, pointer_to(context),
                                                             &allocator(), true));
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(kKey), mine->dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(mine->sizes(), mine->strides(), mine->storage_offset());
  context->memory = host.storage();
  context->host_tensors[0].store(host.unsafeReleaseTensorImpl(), std::memory_order_release);
  return made;
}

class Computing {
 public:
  Computing(const c10::OperatorHandle& op, const Facts& facts) : op_(op), facts_(facts) {}

  // Runs the call; leaves host results on the stack.
  void run(Stack* stack, size_t first) {
    const auto& schema = op_.schema();
    if (torch::jit::tracer::isTracing()) check_traceable(schema);
    const bool starts_on_device = first < stack->size() && (*stack)[first].isTensor() && (*stack)[first].toTensor().defined() && on_device((*stack)[first].toTensor());
    if (facts_.writes) {
      for (auto position : facts_.written) {
        const auto& v = (*stack)[first + position];
        TORCH_CHECK(!v.isTensor() || !v.toTensor().defined() || on_device(v.toTensor()),
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                    schema.name(), " cannot write its argument ", schema.arguments()[position].name(), " on the host)");
      }
    }
    for (size_t i = first; i < stack->size(); ++i) take((*stack)[i]);
    if (host_arrays_) check_host_array(schema, starts_on_device, host_arrays_);
    if (facts_.generator >= 0) name_generator((*stack)[first + facts_.generator]);
    BelowAll below;
    std::optional<Drawing> drawing;
    const bool off = facts_.train >= 0 && (*stack)[first + facts_.train].isBool() && !(*stack)[first + facts_.train].toBool();
    if (facts_.random && facts_.generator < 0 && !off) drawing.emplace();
    try {
      in_host_memory([&] {
        if (lazy_) op_.callBoxed(stack);  // the dispatcher resolves lazy conjugation and negation first
        else op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
      });
    } catch (const c10::NotImplementedError& error) {  // torch's message has a line for every backend
      const std::string text = error.what_without_backtrace();
      TORCH_CHECK_NOT_IMPLEMENTED(text.find('\n') == std::string::npos, "operator '", schema.name(), "' has no kernel for a CPU (edge_offload)");
      throw;
    }
  }

  // Takes one operand of a call that is not boxed; returns its host tensor.
  Tensor take(const Tensor& t) { return take(Tensor(t)); }

  // Replaces host results by device tensors; `described`: gets their metadata.
  void give(Stack* stack, size_t first, bool in_segment, std::vector<Return>* described) {
    if (facts_.writes) for (auto& operand : operands_) follow(operand);
    for (size_t i = first; i < stack->size(); ++i) {
      auto& v = (*stack)[i];
      Return r;
      if (v.isTensor()) {
        Tensor host = std::move(v).toTensor();
        if (!described && is_fresh(host)) v = give_fresh(std::move(host), in_segment);
        else v = wrap(host, in_segment, described ? &r.outs : nullptr);
      } else if (v.isTensorList()) {
        r.kind = Return::kList;
        c10::List<Tensor> list;
        for (const IValue& item : v.toListRef()) list.push_back(wrap(item.toTensor(), in_segment, described ? &r.outs : nullptr));
        v = std::move(list);
      } else if (described) {
        r.kind = Return::kValue;
        r.value = v;
      }
      if (described) described->push_back(std::move(r));
    }
  }

  // Returns the device tensor of a host result; `outs`: gets its metadata.
  Tensor wrap(const Tensor& result, bool in_segment, std::vector<Out>* outs = nullptr) {
    Out out;
    if (!result.defined()) { if (outs) outs->push_back(out); return Tensor(); }
    int number = 0;
    for (const auto& operand : operands_) {
      if (operand.host.is_same(result)) {
        if (outs) { fill(out, result); out.kind = Out::kArgument; out.ref = number; outs->push_back(std::move(out)); }
        return operand.device;
      }
      ++number;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(!result.is_nested() && result.layout() == at::kStrided && result.has_storage() && result.device().is_cpu() && !result.is_quantized(),
                                "a ", result.toString(), " result of ", op_.schema().name(), " is not supported on the device (edge_offload)");
    Tensor host = result;
    for (const auto& mine : hosts_)  // a result may not share memory with the program's host tensors
      if (mine.unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl()) { host = host.clone(); break; }
    c10::Storage storage;
    c10::SmallVector<c10::StorageImpl*, 8> distinct;  // numbered by first use, as in the key
    for (const auto& operand : operands_) {
      auto* mine = operand.device.storage().unsafeGetStorageImpl();
      if (context_of(mine)->memory.unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl()) storage = operand.device.storage();
      if (outs && std::find(distinct.begin(), distinct.end(), mine) == distinct.end()) distinct.push_back(mine);
    }
    out.kind = Out::kAlias;
    if (storage) out.ref = std::find(distinct.begin(), distinct.end(), storage.unsafeGetStorageImpl()) - distinct.begin();
    for (size_t i = 0; !storage && i < made_.size(); ++i)
      if (made_[i].second.unsafeGetStorageImpl() == host.storage().unsafeGetStorageImpl()) { storage = made_[i].first; out.ref = distinct.size() + i; }
    if (!storage) {
      storage = new_storage(host.storage().nbytes(), in_segment);
      auto* context = context_of(storage.unsafeGetStorageImpl());
      context->memory = host.storage();
      remember_host_tensor(context, host);
      made_.emplace_back(storage, host.storage());
      out.kind = Out::kNew;
      out.ref = 0;
    }
    fill(out, host);
    Tensor made = make_tensor(std::move(storage), out);
    if (outs) outs->push_back(std::move(out));
    return made;
  }
 private:
  struct Operand { Tensor device, host; };
  const c10::OperatorHandle& op_;
  const Facts& facts_;
  c10::SmallVector<Operand, 8> operands_;
  c10::SmallVector<c10::Storage, 2> hosts_;                                  // of host tensors among the operands
  c10::SmallVector<std::pair<c10::Storage, c10::Storage>, 2> made_;          // on the device and on the host
  int host_arrays_ = 0;                                                      // number of host tensors that are not single numbers
  bool lazy_ = false;

  void take(IValue& v) {
    if (v.isTensor()) { Tensor t = std::move(v).toTensor(); v = take(std::move(t)); }
    else if (v.isDevice()) {
      TORCH_CHECK(v.toDevice().type() == kDevice && v.toDevice().index() <= 0,
                  "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
      v = c10::Device(c10::DeviceType::CPU);
    }
    else if (v.isTensorList()) {
      c10::List<Tensor> list;
      for (const IValue& item : v.toListRef()) list.push_back(take(item.toTensor()));
      v = std::move(list);
    }
    else if (v.isList() && v.toList().elementType()->kind() == c10::TypeKind::OptionalType) {
      c10::List<optional<Tensor>> list;
      for (const IValue& item : v.toListRef()) list.push_back(item.isTensor() ? optional<Tensor>(take(item.toTensor())) : nullopt);
      v = std::move(list);
    }
  }
  Tensor take(Tensor&& t) {
    if (!t.defined()) return t;
    if (on_device(t)) {
      auto host = host_of(t);
      lazy_ = lazy_ || host.is_conj() || host.is_neg();
      operands_.push_back({std::move(t), host});
      return host;
    }
    TORCH_CHECK(t.device().is_cpu(), "edge_offload: a tensor on ", t.device(), " cannot be used with the virtual device");
    TORCH_CHECK(t.layout() == at::kStrided, "edge_offload: a ", t.layout(), " tensor is not supported on the device");
    if (t.dim() > 0) ++host_arrays_;
    lazy_ = lazy_ || t.is_conj() || t.is_neg();
    if (t.has_storage()) hosts_.push_back(t.storage());
    return t;
  }
  void name_generator(IValue& v) {
    if (v.isNone()) { v = generator_of(0); return; }
    auto generator = v.toGenerator();
    TORCH_CHECK(generator.device().type() == kDevice, "Expected a 'cuda' device type for generator but found '", generator.device().type(), "'");
    v = generator_of(edge_offload_number(generator.unsafeGetGeneratorImpl()));
  }

  // Updates the size and memory of a written operand.
  void follow(const Operand& operand) {
    auto* device = operand.device.unsafeGetTensorImpl();
    auto* host = operand.host.unsafeGetTensorImpl();
    if (device->sizes() != host->sizes() || device->strides() != host->strides() || device->storage_offset() != host->storage_offset())
      device->set_sizes_and_strides(host->sizes(), host->strides(), host->storage_offset());
    const auto& storage = operand.device.storage();
    auto* context = context_of(storage.unsafeGetStorageImpl());
    TORCH_CHECK(host->storage().unsafeGetStorageImpl() == context->memory.unsafeGetStorageImpl(),
                "edge_offload: ", op_.schema().name(), " gave an operand other memory");
    const auto bytes = context->memory.nbytes();
    if (storage.nbytes() != bytes) { storage.set_nbytes(bytes); hold_bytes(context, bytes); }
  }

  static void fill(Out& out, const Tensor& t) {
    out.type = t.scalar_type();
    out.flags = (t.is_conj() ? 1 : 0) | (t.is_neg() ? 2 : 0);
    out.sizes.append(t.sizes().begin(), t.sizes().end());
    out.strides.append(t.strides().begin(), t.strides().end());
    out.offset = t.storage_offset();
    out.bytes = t.storage().nbytes();
  }
};

}  // namespace edge_offload
