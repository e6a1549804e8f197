// The virtual CUDA device: tensors whose storage is a number, and a recorder of the calls made on them.
//
// Every functional operator on the CUDA key runs one boxed kernel. It notes the call in the pending segment and hands
// out results whose metadata is known from an earlier, identical call. A host read, a result whose shape depends on
// data, or a call never seen before ends the segment: Python (the handler) has it executed.
//
// Locking: `State::calls` orders calls and is always taken before the GIL; `State::deaths` is a leaf, taken by
// destructors of storages, which run wherever Python drops a tensor.
#include "keys.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <dlfcn.h>
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <mutex>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace py = pybind11;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace edge_offload {

constexpr auto kKey = c10::DispatchKey::CUDA;
constexpr size_t kFlushBytes = 8u << 20;  // uploads waiting in one segment
constexpr size_t kFlushWords = 1u << 15;
constexpr size_t kMaxEntries = 1u << 18;  // distinct calls, and segments, before everything is learnt anew
constexpr size_t kMaxSegments = 1u << 16;

enum Reason : int { kRead = 0, kInfer = 1, kDynamic = 2, kAsync = 3, kCall = 4, kBarrier = 5 };

// What one result of a call looks like.
struct Out {
  enum Kind : int { kNew = 0, kAlias = 1, kArgument = 2, kUndefined = 3 };
  int kind = kUndefined;
  int ref = 0;  // alias: number of the storage within the call; argument: number among its device tensors
  at::ScalarType type = at::kFloat;
  int flags = 0;
  c10::SmallVector<int64_t, 5> sizes, strides;
  int64_t offset = 0;
  int64_t bytes = 0;
};
struct Return {
  enum Kind { kTensor, kList, kValue } kind = kTensor;
  std::vector<Out> outs;
  IValue value;
};
struct Entry {  // a distinct call: operator, arguments, metadata of its operands
  uint32_t index = 0;
  std::string name;
  std::string key;
  const c10::OperatorHandle* op = nullptr;
  bool known = false;    // the metadata of its results is known
  bool dynamic = false;  // ... and cannot be, because it depends on data
  bool claimed = false;  // ... was worked out here, and is checked by the server
  std::vector<Return> returns;
};

struct Context {  // the owner of a device storage: what its fake pointer stands for
  uint64_t id;
  uint64_t epoch = 0;   // segment in which `canonical` is valid
  uint32_t canonical = 0;
  bool fresh = false;   // created in that segment
  ~Context();
};

struct Segment {  // the pending one
  std::vector<uint32_t> words;  // per call: entry, canonical number of the storage of each T and S item
  std::vector<uint64_t> live;   // (canonical, id) of the storages that existed before
  uint32_t values = 0;          // canonical numbers given out
  uint64_t base = 0;            // id of its first new storage
  std::vector<Number> numbers;
  std::vector<Tensor> payloads;
  size_t payload_bytes = 0;
  uint64_t hash[2] = {0x9ae16a3b2f90404full, 0xc3a5c85c97cb3127ull};
  uint32_t calls = 0;
};
struct Known {  // a segment that has been defined
  uint32_t id;
  std::vector<uint32_t> words;
  size_t payloads;
};
struct Death { uint64_t id, epoch; uint32_t canonical; bool fresh; };

struct Bytes128 { uint64_t low, high; bool operator==(const Bytes128& o) const { return low == o.low && high == o.high; } };
struct Hash128 { size_t operator()(const Bytes128& b) const { return b.low ^ (b.high * 0x9e3779b97f4a7c15ull); } };

struct State {
  std::recursive_mutex calls;
  std::mutex deaths;
  std::vector<Death> dead;
  uint64_t next_id = 1, epoch = 1;
  Segment pending;
  std::unordered_map<std::string_view, std::unique_ptr<Entry>> entries;  // the view is into Entry::key
  std::vector<Entry*> by_index;
  std::unordered_multimap<Bytes128, uint32_t, Hash128> segments;  // hash -> index in `known`; compared word by word
  std::vector<std::unique_ptr<Known>> known;
  int64_t expected = -1;  // segment whose uploads are announced as soon as they are complete
  std::unordered_set<const c10::FunctionSchema*> trusted;  // operators whose meta kernels are the CPU's own shape functions
  uint32_t generation = 0;                                 // how often entries and segments have been forgotten
  bool per_call = false;
  bool busy = false;      // the handler is running
  bool installed = false;
  PyObject* handler = nullptr;
  uint64_t count_calls = 0, count_hits = 0, count_flushes = 0;
};
State& state() { static auto* s = new State; return *s; }  // never destroyed: storages outlive static destruction

// Takes the lock on calls; lets go of the GIL while it has to wait, because the holder may need it.
struct Hold {
  std::unique_lock<std::recursive_mutex> lock;
  Hold() : lock(state().calls, std::try_to_lock) {
    if (!lock.owns_lock()) {
      if (PyGILState_Check()) { py::gil_scoped_release release; lock.lock(); } else lock.lock();
    }
    TORCH_CHECK(!state().busy, "edge_offload: the device was used from inside its own handler");
  }
};

Context::~Context() {
  auto& s = state();
  std::lock_guard<std::mutex> hold(s.deaths);
  s.dead.push_back({id, epoch, canonical, fresh});
}
void release(void* context) { delete static_cast<Context*>(context); }

inline Context* context_of(c10::StorageImpl* storage) {
  auto& pointer = storage->_mutable_data_ptr_no_checks();
  TORCH_CHECK(pointer.get_deleter() == &release, "edge_offload: a CUDA storage that the virtual device did not make");
  return static_cast<Context*>(pointer.get_context());
}

// ---- the pending segment

void word(uint32_t value) {
  auto& segment = state().pending;
  segment.words.push_back(value);
  segment.hash[0] = (segment.hash[0] ^ value) * 0x9fb21c651e98df25ull;
  segment.hash[0] ^= segment.hash[0] >> 32;
  segment.hash[1] = (segment.hash[1] + value) * 0xd6e8feb86659fd93ull;
  segment.hash[1] ^= segment.hash[1] >> 29;
}

uint32_t canonical(c10::StorageImpl* storage) {
  auto& s = state();
  auto* context = context_of(storage);
  if (context->epoch != s.epoch) {
    context->epoch = s.epoch;
    context->canonical = s.pending.values++;
    context->fresh = false;
    s.pending.live.push_back(context->canonical);
    s.pending.live.push_back(context->id);
  }
  return context->canonical;
}

Context* new_context(bool in_segment) {
  auto& s = state();
  auto* context = new Context{s.next_id++};
  if (in_segment) { context->epoch = s.epoch; context->canonical = s.pending.values++; context->fresh = true; }
  return context;
}

struct RemoteAllocator final : public c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "edge_offload: device memory was addressed from the host");
  }
};
RemoteAllocator& allocator() { static auto* a = new RemoteAllocator; return *a; }

c10::DataPtr pointer_to(Context* context) {
  // distinct, page aligned, never dereferenced: the range is not mapped in user space
  return {reinterpret_cast<void*>(0xE000000000000000ull | (context->id << 12)), context, &release, c10::Device(kDevice, 0)};
}
c10::Storage new_storage(int64_t bytes, bool in_segment) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                           pointer_to(new_context(in_segment)), &allocator(), true));
}

void check_host_operands(const Key& key, const c10::FunctionSchema& schema) {
  // as on a GPU: a host number may join device tensors, a host array may not, except where torch itself moves it
  static const std::unordered_set<std::string> moves = {"aten::index", "aten::_unsafe_index", "aten::index_put", "aten::index_put_",
      "aten::_unsafe_index_put", "aten::_index_put_impl_", "aten::_pack_padded_sequence", "aten::tensor_split"};
  TORCH_CHECK(!key.host_array || moves.count(schema.name()),
              "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (in ", schema.name(), ")");
  TORCH_CHECK(!key.host_array || key.bytes[sizeof(void*)] == 'T',
              "indices should be either on cpu or on the same device as the indexed tensor (cpu)");
}
void check_written(const c10::FunctionSchema& schema, const Stack& stack, size_t first) {
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    const auto& v = stack[first + i];
    if (alias && alias->isWrite() && v.isTensor() && v.toTensor().defined() && !on_device(v.toTensor()))
      TORCH_CHECK(false, "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! (",
                  schema.name(), " cannot write its argument ", schema.arguments()[i].name(), " on the host)");
  }
}

Entry* lookup(const Key& key) {
  auto found = state().entries.find(key.bytes);
  return found == state().entries.end() ? nullptr : found->second.get();
}
Entry* intern(const Key& key, std::string name) {
  auto& s = state();
  auto entry = std::make_unique<Entry>();
  entry->index = s.by_index.size();
  entry->name = std::move(name);
  entry->key = key.bytes;
  auto* result = entry.get();
  s.by_index.push_back(result);
  s.entries.emplace(std::string_view(result->key), std::move(entry));
  return result;
}

void announce_if_complete();

void note(const Entry* entry, const Key& key) {
  auto& segment = state().pending;
  if (segment.words.empty()) segment.base = state().next_id;
  word(entry->index);
  for (auto* storage : key.references) word(canonical(storage));
  for (const auto& number : key.numbers) segment.numbers.push_back(number);
  ++segment.calls;
  if (!key.payloads.empty()) {
    for (const auto& payload : key.payloads) {
      auto plain = payload.resolve_conj().resolve_neg().contiguous();
      segment.payload_bytes += plain.nbytes();
      segment.payloads.push_back(plain.is_alias_of(payload) ? plain.clone() : plain);
    }
    announce_if_complete();
  }
}

// A call that is not an operator: its key is built by `fill`.
template <typename Fill>
Entry* note_special(const char* name, Fill fill) {
  Key key(name);
  fill(key);
  auto* entry = lookup(key);
  if (!entry) { entry = intern(key, name); entry->known = true; }
  note(entry, key);
  return entry;
}
const char* const kAlloc = "edge::alloc";
const char* const kResize = "edge::resize";
const char* const kUpload = "edge::upload";
const char* const kDownload = "edge::download";
const char* const kSeed = "edge::seed";
const char* const kState = "edge::state";
const char* const kRestore = "edge::restore";

// ---- handing the pending segment to Python

uint32_t identify(const Segment& segment, bool* fresh) {
  auto& s = state();
  const Bytes128 hash{segment.hash[0], segment.hash[1]};
  auto range = s.segments.equal_range(hash);
  for (auto it = range.first; it != range.second; ++it)
    if (s.known[it->second]->words == segment.words) { *fresh = false; return it->second; }
  const uint32_t id = s.known.size();
  s.known.push_back(std::make_unique<Known>(Known{id, segment.words, segment.payloads.size()}));
  s.segments.emplace(hash, id);
  *fresh = true;
  return id;
}

// The handler is running: what it does with host tensors is no part of what the program traces or overrides.
class Busy {
 public:
  Busy() : tracing_(torch::jit::tracer::getTracingState()), functions_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
    state().busy = true;
    if (tracing_) torch::jit::tracer::setTracingState(nullptr);
    at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED);
  }
  ~Busy() {
    at::impl::PythonTorchFunctionTLS::set_disabled_state(functions_);
    if (tracing_) {  // torch's own kernels may have excluded the key, and switching tracing on then asserts
      const bool excluded = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Tracer);
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, false);
      torch::jit::tracer::setTracingState(std::move(tracing_));
      c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::Tracer, excluded);
    }
    state().busy = false;
  }

 private:
  std::shared_ptr<torch::jit::tracer::TracingState> tracing_;
  at::impl::TorchFunctionDisabledState functions_;
};

// Runs `use(result)` under the GIL on what the handler returned.
template <typename Use>
void flush(Reason reason, Use use) {
  auto& s = state();
  Segment segment = std::move(s.pending);
  s.pending = Segment();
  const uint64_t epoch = s.epoch++;
  bool fresh = false;
  const uint32_t id = identify(segment, &fresh);
  std::vector<Death> deaths;
  { std::lock_guard<std::mutex> hold(s.deaths); deaths.swap(s.dead); }
  ++s.count_flushes;
  py::gil_scoped_acquire gil;
  py::list dead, freed, live;
  for (const auto& death : deaths) {
    if (death.fresh && death.epoch == epoch) dead.append(death.canonical); else freed.append(death.id);
  }
  for (auto value : segment.live) live.append(value);
  py::list payloads;
  for (auto& payload : segment.payloads) payloads.append(py::cast(payload));
  py::bytes numbers(reinterpret_cast<const char*>(segment.numbers.data()), segment.numbers.size() * sizeof(Number));
  Busy busy;
  py::object result = py::reinterpret_borrow<py::object>(s.handler).attr("flush")(
      static_cast<int>(reason), s.generation, id, fresh, segment.words.empty() ? s.next_id : segment.base, live, dead, freed, numbers, payloads, segment.calls);
  use(result);
}
void flush(Reason reason) { flush(reason, [](const py::object&) {}); }

void announce_if_complete() {
  auto& s = state();
  if (s.expected < 0) return;
  const auto& known = *s.known[s.expected];
  const auto& words = s.pending.words;
  if (s.pending.payloads.size() != known.payloads || words.size() > known.words.size() ||
      !std::equal(words.begin(), words.end(), known.words.begin()))
    return;
  s.expected = -1;
  py::gil_scoped_acquire gil;
  py::list live, payloads;
  for (auto value : s.pending.live) live.append(value);
  for (auto& payload : s.pending.payloads) payloads.append(py::cast(payload));
  Busy busy;
  py::reinterpret_borrow<py::object>(s.handler).attr("announce")(known.id, s.pending.base, live, payloads);
}

void after_call() {
  auto& s = state();
  if (s.per_call) flush(kCall);
  else if (s.pending.payload_bytes > kFlushBytes || s.pending.words.size() > kFlushWords) flush(kAsync);
}

// ---- results

Out parse_out(const py::handle& item) {
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
IValue parse_value(const py::handle& item, const c10::TypePtr& type) {
  if (item.is_none()) return IValue();
  if (py::isinstance<py::bool_>(item)) return item.cast<bool>();
  if (type->kind() == c10::TypeKind::FloatType) return item.cast<double>();
  if (py::isinstance<py::int_>(item)) return item.cast<int64_t>();
  if (py::isinstance<py::float_>(item)) return item.cast<double>();
  TORCH_CHECK(false, "edge_offload: the server returned a value of a kind that is not supported");
}
std::vector<Return> parse_returns(const py::object& result, const c10::FunctionSchema& schema) {
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

Tensor make_tensor(c10::Storage storage, const Out& out) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(kKey), c10::scalarTypeToTypeMeta(out.type));
  t.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes, out.strides, out.offset);
  if (out.flags & 1) t._set_conj(true);
  if (out.flags & 2) t._set_neg(true);
  return t;
}
Tensor make_result(const Out& out, const Key& key, c10::SmallVector<c10::Storage, 4>& created, bool in_segment) {
  if (out.kind == Out::kUndefined) return Tensor();
  if (out.kind == Out::kArgument) {
    const Tensor& t = *key.tensors.at(out.ref);
    auto* implementation = t.unsafeGetTensorImpl();
    if (implementation->sizes() != c10::IntArrayRef(out.sizes) || implementation->strides() != c10::IntArrayRef(out.strides)) {
      if (out.bytes > static_cast<int64_t>(t.storage().nbytes())) t.storage().set_nbytes(out.bytes);  // resized by out=
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
void give_results(const std::vector<Return>& returns, const Key& key, Stack* stack, size_t arguments, bool in_segment) {
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

// ---- operators

bool has_dynamic_results(const c10::OperatorHandle& op, const Stack& stack, size_t first) {
  const auto& schema = op.schema();
  for (const auto& r : schema.returns()) {
    auto kind = r.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType) return true;
  }
  const auto& name = schema.name();
  if (name.rfind("aten::", 0) != 0) return true;  // operators of other libraries do not say: assume the worst
  if (name == "aten::linalg_lstsq" || name == "aten::_pack_padded_sequence") return true;  // shapes depend on values, untagged
  if (!op.hasTag(at::Tag::dynamic_output_shape) && !op.hasTag(at::Tag::data_dependent_output)) return false;
  if (name != "aten::index" && name != "aten::_unsafe_index") return true;
  for (const IValue& index : stack[first + 1].toListRef())  // only masks make the shape depend on data
    if (index.isTensor() && index.toTensor().defined() &&
        (index.toTensor().scalar_type() == at::kBool || index.toTensor().scalar_type() == at::kByte))
      return true;
  return false;
}

// The metadata of a call's results from its meta kernel, for operators whose meta kernel is the same code.
class MetaRun {
 public:
  std::vector<Return> run(const c10::OperatorHandle& op, const Stack& stack, size_t first, const Key& key) {
    Stack meta;
    for (size_t i = first; i < stack.size(); ++i) meta.push_back(convert(stack[i], key));
    op.callBoxed(&meta);
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
      c10::List<std::optional<Tensor>> list;
      for (const IValue& item : v.toListRef())
        list.push_back(item.isTensor() ? std::optional<Tensor>(convert(item.toTensor(), key)) : std::nullopt);
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

bool plain(const Key& key) {  // no operand whose bytes need interpreting, which meta kernels do not know of
  if (!key.payloads.empty()) return false;
  for (const auto* t : key.tensors)
    if (t->is_conj() || t->is_neg()) return false;
  return true;
}

void forget_if_many() {
  auto& s = state();
  if ((s.by_index.size() < kMaxEntries && s.known.size() < kMaxSegments) || !s.pending.words.empty()) return;
  s.entries.clear();
  s.by_index.clear();
  s.segments.clear();
  s.known.clear();
  s.expected = -1;
  ++s.generation;
}

void check_traceable(const c10::FunctionSchema& schema) {
  // torch.jit.trace records what these are made of and not them: a trace would have their results as constants
  static const std::unordered_set<std::string> unseen = {"aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"};
  TORCH_CHECK_NOT_IMPLEMENTED(!unseen.count(schema.name()), "edge_offload: ", schema.name(),
                              " cannot be traced on the device; use torch.jit.script, or trace on the CPU");
}

void boxed(const c10::OperatorHandle& op, Stack* stack) {
  Hold hold;
  auto& s = state();
  forget_if_many();
  const auto& schema = op.schema();
  if (torch::jit::tracer::isTracing()) check_traceable(schema);
  const size_t arguments = schema.arguments().size(), first = stack->size() - arguments;
  Key key(&schema);
  for (size_t i = 0; i < arguments; ++i) key.value((*stack)[first + i], schema.name().c_str());
  ++s.count_calls;
  auto* entry = lookup(key);
  if (!entry) {
    check_host_operands(key, schema);
    check_written(schema, *stack, first);
    const bool dynamic = has_dynamic_results(op, *stack, first);
    std::vector<Return> returns;
    const bool here = !dynamic && s.trusted.count(&schema) && plain(key);
    if (here) returns = MetaRun().run(op, *stack, first, key);  // raises what eager execution would raise
    entry = intern(key, c10::toString(op.operator_name()));
    entry->dynamic = dynamic;
    entry->known = entry->claimed = here;
    entry->returns = std::move(returns);
  }
  note(entry, key);
  if (entry->known) {
    ++s.count_hits;
    give_results(entry->returns, key, stack, arguments, true);
    after_call();
    return;
  }
  std::vector<Return> returns;
  flush(entry->dynamic ? kDynamic : kInfer, [&](const py::object& result) { returns = parse_returns(result, schema); });
  give_results(returns, key, stack, arguments, false);
  if (!entry->dynamic) { entry->returns = std::move(returns); entry->known = true; }
}

c10::DataPtr RemoteAllocator::allocate(size_t bytes) {
  Hold hold;
  note_special(kAlloc, [&](Key& key) { key.tag('I'); key.put(static_cast<int64_t>(bytes)); });
  return pointer_to(new_context(true));
}

void grow(const c10::Storage& storage, int64_t bytes) {
  if (static_cast<int64_t>(storage.nbytes()) >= bytes) return;
  note_special(kResize, [&](Key& key) {
    key.tag('S'); key.storage(storage.unsafeGetStorageImpl()); key.tag('I'); key.put(bytes);
  });
  storage.set_nbytes(bytes);
}

void on_seed(int64_t generator, uint64_t seed) {
  if (!state().installed) return;
  Hold hold;
  note_special(kSeed, [&](Key& key) {
    key.tag('I'); key.put(generator);
    Number number;
    std::memcpy(number.bytes, &seed, 8);
    key.numbers.push_back(number);
  });
}

Tensor read(const Tensor& source) {
  note_special(kDownload, [&](Key& key) { key.tensor(source); });
  Tensor host;
  flush(kRead, [&](const py::object& result) { host = py::cast<Tensor>(result); });
  return host;
}

Tensor get_state(int64_t generator) {
  Hold hold;
  note_special(kState, [&](Key& key) { key.tag('I'); key.put(generator); });
  Tensor state;
  flush(kRead, [&](const py::object& result) { state = py::cast<Tensor>(result); });
  return state;
}
void set_state(int64_t generator, const Tensor& state) {
  TORCH_CHECK(state.device().is_cpu() && state.scalar_type() == at::kByte && state.layout() == at::kStrided, "RNG state must be a torch.ByteTensor");
  Hold hold;
  note_special(kRestore, [&](Key& key) {
    key.tag('I'); key.put(generator);
    key.tag('P'); key.put(static_cast<uint8_t>(at::kByte)); key.put(static_cast<uint8_t>(state.dim()));
    key.put_list(state.sizes().data(), state.dim());
    key.payloads.push_back(state);
  });
  after_call();
}

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined() && source.defined(), "copy_: undefined tensor");
  if (on_device(self) && on_device(source)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    Stack stack{self, source, false};
    boxed(op, &stack);
    return self;
  }
  Hold hold;
  if (on_device(self)) {
    TORCH_CHECK(source.device().is_cpu(), "edge_offload: cannot copy from ", source.device(), " to the virtual device");
    if (self.numel() == 0) return self;
    TORCH_CHECK(source.layout() == at::kStrided, "edge_offload: cannot copy a ", source.layout(), " tensor to the device");
    note_special(kUpload, [&](Key& key) {
      key.tensor(self);
      key.tag('P'); key.put(static_cast<uint8_t>(source.scalar_type())); key.put(static_cast<uint8_t>(source.dim()));
      key.put_list(source.sizes().data(), source.dim());
      key.payloads.push_back(source);
    });
    after_call();
    return self;
  }
  TORCH_CHECK(self.device().is_cpu(), "edge_offload: cannot copy from the virtual device to ", self.device());
  if (source.numel() == 0) return self;
  Tensor host = read(source);
  return self.copy_(host);
}

at::Scalar local_scalar_dense(const Tensor& self) {
  Hold hold;
  return read(self).item();
}

void check_device(std::optional<at::Device> device) {
  TORCH_CHECK(!device || device->index() <= 0, "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
}
Tensor empty_memory_format(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                           std::optional<at::Device> device, std::optional<bool> pinned, std::optional<at::MemoryFormat> format) {
  check_device(device);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "edge_offload: layout ", *layout, " is not supported on the device");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator(), c10::DispatchKeySet(kKey),
                                   dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())), format);
}
Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                     std::optional<at::Layout> layout, std::optional<at::Device> device, std::optional<bool> pinned) {
  check_device(device);
  TORCH_CHECK(layout.value_or(at::kStrided) == at::kStrided, "edge_offload: layout ", *layout, " is not supported on the device");
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride), &allocator(),
                                           c10::DispatchKeySet(kKey), dtype.value_or(at::typeMetaToScalarType(at::get_default_dtype())));
}

// ---- metadata that the client changes by itself

Tensor view(const Tensor& self, c10::SymIntArrayRef size) { return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size)); }
Tensor as_strided(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}
Tensor reshape_alias(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}
Tensor unsafe_view(const Tensor& self, c10::SymIntArrayRef size) { return view(self, size); }

int64_t bytes_needed(const Tensor& self, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset) {
  return at::detail::computeStorageNbytes(size, stride, self.dtype().itemsize(), offset);
}
const Tensor& resize_(const Tensor& self, c10::SymIntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  Hold hold;
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto* implementation = self.unsafeGetTensorImpl();
  if (implementation->sizes() != size) {
    implementation->set_sizes_contiguous(size);
    grow(self.storage(), bytes_needed(self, implementation->sizes(), implementation->strides(), implementation->storage_offset()));
  }
  if (format) implementation->empty_tensor_restride(*format);
  return self;
}
Tensor& set_storage_at(Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  Hold hold;
  TORCH_CHECK(source.device().type() == kDevice, "Expected a storage on cuda:0, but it is on ", source.device());
  auto size = C10_AS_INTARRAYREF_SLOW(sizes);
  auto stride = C10_AS_INTARRAYREF_SLOW(strides);
  auto* implementation = self.unsafeGetTensorImpl();
  c10::SmallVector<int64_t, 5> contiguous(size.size(), 1);
  for (int64_t i = static_cast<int64_t>(size.size()) - 2; i >= 0; --i)
    contiguous[i] = contiguous[i + 1] * std::max<int64_t>(size[i + 1], 1);
  auto used = stride.data() ? stride : c10::IntArrayRef(contiguous);
  TORCH_CHECK(used.size() == size.size(), "unequal size length (", size.size(), ") and stride length (", used.size(), ")");
  TORCH_CHECK(offset.expect_int() >= 0, "Tensor: invalid storage offset ", offset);
  implementation->set_storage_keep_dtype(source);
  implementation->set_sizes_and_strides(size, used, offset.expect_int());
  grow(source, bytes_needed(self, size, used, offset.expect_int()));
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.dtype().itemsize());
  const c10::SymInt size(count), stride(1);
  return set_storage_at(self, source, 0, c10::SymIntArrayRef(&size, 1), c10::SymIntArrayRef(&stride, 1));
}
Tensor& set_tensor(Tensor& self, const Tensor& source) {
  return set_storage_at(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(), source.sym_strides());
}
Tensor& set_nothing(Tensor& self) {
  const c10::SymInt size(0), stride(1);
  return set_storage_at(self, c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, allocator().allocate(0), &allocator(), true)), 0,
      c10::SymIntArrayRef(&size, 1), c10::SymIntArrayRef(&stride, 1));
}
bool is_set_to(const Tensor& self, const Tensor& source) {
  return self.storage().unsafeGetStorageImpl() == source.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == source.storage_offset() && self.sizes() == source.sizes() && self.strides() == source.strides();
}
void record_stream(Tensor&, c10::Stream) {}

// ---- installation

// Operators that torch expresses through others on every device; their expansion is what gets recorded.
const std::unordered_set<std::string>& expanded() {
  static const std::unordered_set<std::string> names = {"_to_copy", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like",
      "full_like", "rand_like", "randn_like", "rand_like.generator", "randn_like.generator", "randint_like", "randint_like.low_dtype",
      "clone", "lift", "lift_fresh", "detach", "alias", "new_empty", "new_empty_strided", "new_full", "new_zeros", "new_ones", "rand",
      "randn", "rand.generator", "randn.generator", "randint", "randint.low", "randint.generator", "randint.low_generator", "normal.float_float",
      "arange", "arange.start", "arange.start_step", "scalar_tensor", "_lazy_clone", "to_padded_tensor", "is_same_size", "_unsafe_view",
      "convolution",  // torch.jit.trace sees only what it becomes
      "eye", "eye.m", "linspace", "logspace", "is_pinned", "_pin_memory", "empty.names", "empty_permuted", "randperm", "randperm.generator"};
  return names;
}
// Composite operators that choose another path on a GPU than on a CPU: recorded whole, so that the server chooses.
const std::vector<std::string>& whole() {
  static const std::vector<std::string> names = {"lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data",
      "rnn_relu.input", "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell", "scaled_dot_product_attention",
      "softmax.int", "log_softmax.int", "dropout", "dropout_", "ctc_loss.Tensor", "ctc_loss.IntList"};
  return names;
}
const std::unordered_set<std::string>& answered_here() {
  static const std::unordered_set<std::string> names = {"empty.memory_format", "empty_strided", "copy_", "_local_scalar_dense", "view",
      "as_strided", "_reshape_alias", "unfold", "resize_", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset",
      "set_.source_Tensor", "is_set_to", "record_stream"};
  return names;
}

int install(py::object handler) {
  auto& s = state();
  TORCH_CHECK(!s.installed, "edge_offload: the virtual device is installed already");
  s.handler = handler.release().ptr();
  s.next_id = 1;
  auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty_memory_format);
  library->impl("empty_strided", &empty_strided);
  library->impl("copy_", &copy_);
  library->impl("_local_scalar_dense", &local_scalar_dense);
  library->impl("view", &view);
  library->impl("as_strided", &as_strided);
  library->impl("_reshape_alias", &reshape_alias);
  library->impl("unfold", &at::native::unfold);
  library->impl("resize_", &resize_);
  library->impl("set_.source_Storage_storage_offset", &set_storage_at);
  library->impl("set_.source_Storage", &set_storage);
  library->impl("set_.source_Tensor", &set_tensor);
  library->impl("set_", &set_nothing);
  library->impl("is_set_to", &is_set_to);
  library->impl("record_stream", &record_stream);
  library->impl("_unsafe_view", &unsafe_view);
  auto& dispatcher = c10::Dispatcher::singleton();
  int registered = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const std::string short_name = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    if (answered_here().count(short_name) || expanded().count(short_name)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd) || op->hasKernelForDispatchKey(kKey)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    bool is_view = op->hasTag(at::Tag::inplace_view);
    for (const auto& argument : op->schema().arguments())
      if (argument.alias_info() && !argument.alias_info()->isWrite()) is_view = true;
    if (is_view) continue;  // metadata only: torch expresses it through as_strided, which is answered here
    library->impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    ++registered;
  }
  for (const auto& name : whole())
    if (dispatcher.findSchema({"aten::" + name.substr(0, name.find('.')), name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1)})) {
      library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
      ++registered;
    }
  c10::SetAllocator(kDevice, &allocator(), 1);
  using Set = void (*)(void (*)(int64_t, uint64_t), Tensor (*)(int64_t), void (*)(int64_t, const Tensor&));
  if (auto* set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "edge_offload_callbacks"))) set(&on_seed, &get_state, &set_state);
  s.installed = true;
  return registered;
}

void synchronize() {
  py::gil_scoped_release release;
  Hold hold;
  flush(kBarrier);
}
py::list describe(const std::vector<Return>& returns) {
  py::list described;
  for (const auto& r : returns) {
    py::list outs;
    for (const auto& out : r.outs) {
      py::list item;
      item.append(out.kind);
      if (out.kind != Out::kUndefined) {
        item.append(out.ref);
        item.append(static_cast<int>(out.type));
        item.append(out.flags);
        py::list sizes, strides;
        for (auto size : out.sizes) sizes.append(size);
        for (auto stride : out.strides) strides.append(stride);
        item.append(sizes);
        item.append(strides);
        item.append(out.offset);
        item.append(out.bytes);
      }
      outs.append(item);
    }
    py::list one;
    one.append(r.kind == Return::kTensor ? "t" : "l");
    one.append(r.kind == Return::kTensor ? py::object(outs[0]) : py::object(outs));
    described.append(one);
  }
  return described;
}
// Name, key, and the results that were worked out here (None if the server says what they are).
py::tuple entry_of(uint32_t index) {
  const auto& entry = *state().by_index.at(index);
  return py::make_tuple(entry.name, py::bytes(entry.key.substr(sizeof(void*))),
                        entry.claimed ? py::object(describe(entry.returns)) : py::object(py::none()));
}
void trust(const std::vector<std::string>& names) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : names) {
    const auto dot = name.find('.');
    auto op = dispatcher.findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
    if (op) state().trusted.insert(&op->schema());
  }
}
py::bytes words_of(uint32_t segment) {
  const auto& words = state().known.at(segment)->words;
  return py::bytes(reinterpret_cast<const char*>(words.data()), words.size() * sizeof(uint32_t));
}
py::dict counters() {
  auto& s = state();
  py::dict d;
  d["calls"] = s.count_calls;
  d["hits"] = s.count_hits;
  d["flushes"] = s.count_flushes;
  d["entries"] = s.by_index.size();
  d["segments"] = s.known.size();
  return d;
}

}  // namespace edge_offload

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&edge_offload::boxed>());
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace edge_offload;
  m.def("install", &install);
  m.def("synchronize", &synchronize);
  m.def("entry", &entry_of);
  m.def("words", &words_of);
  m.def("expect", [](int64_t segment) { state().expected = segment; });
  m.def("trust", &trust);
  m.def("per_call", [](bool on) { state().per_call = on; });
  m.def("counters", &counters);
  m.def("default_generator", [] { return at::globalContext().defaultGenerator(c10::Device(kDevice, 0)); });
}
