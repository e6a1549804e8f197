// The virtual CUDA device: tensors whose storage is a number, and a recorder of the calls made on them.
//
// Every functional operator on the CUDA key runs one boxed kernel (dispatch.h). It notes the call in the pending segment
// (segment.h) and returns results with the cached metadata of an earlier, identical call (results.h). A host read, a
// result whose shape depends on data, or a call never seen before ends the segment: Python (the handler) has it executed
// (flush.h). This file puts the kernels into the dispatcher; one translation unit, because torch's headers cost most.
#include "compare.h"
#include "composed.h"
#include "composites.h"
#include "factories.h"
#include "typed.h"
#include "views.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <dlfcn.h>
#include <torch/library.h>

namespace edge_offload {

// Operators that torch expresses through others on every device; their expansion is what gets recorded.
const std::unordered_set<std::string>& expanded() {
  static const std::unordered_set<std::string> names = {"_to_copy", "zeros", "ones", "full", "empty_like", "zeros_like", "ones_like",
      "full_like", "rand_like", "randn_like", "rand_like.generator", "randn_like.generator", "randint_like", "randint_like.low_dtype",
      "clone", "lift", "lift_fresh", "detach", "alias", "new_empty", "new_empty_strided", "new_full", "new_zeros", "new_ones", "rand",
      "randn", "rand.generator", "randn.generator", "randint", "randint.low", "randint.generator", "randint.low_generator", "normal.float_float",
      "arange", "arange.start", "arange.start_step", "scalar_tensor", "_lazy_clone", "to_padded_tensor", "is_same_size", "_unsafe_view",
      "convolution",  // torch.jit.trace sees only its expansion
      "_is_all_true", "_is_any_true", "_assert_tensor_metadata", "_has_same_storage_numel", "_print", "_pack_padded_sequence",
      "_nested_tensor_from_tensor_list", "eye", "eye.m", "linspace", "logspace", "is_pinned", "_pin_memory", "empty.names", "empty_permuted", "randperm", "randperm.generator"};
  return names;
}
const std::unordered_set<std::string>& answered_locally() {
  static const std::unordered_set<std::string> names = {"empty.memory_format", "empty_strided", "copy_", "_local_scalar_dense", "view",
      "as_strided", "_reshape_alias", "unfold", "resize_", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset",
      "set_.source_Tensor", "is_set_to", "record_stream", "equal"};
  return names;
}

// Suppresses torch's warnings that a kernel is being replaced, one for each of a thousand.
class Quiet final : public c10::WarningHandler {
 public:
  Quiet() : guard_(this) {}
  void process(const c10::Warning&) {}

 private:
  c10::WarningUtils::WarningHandlerGuard guard_;
};

// Page-locked memory: up to torch 2.6 kernels of the CUDA key allocate it.
bool is_pinned(const Tensor& self, optional<at::Device>) {
  return self.device().is_cpu() && self.defined() && self.has_storage() && at::detail::getCUDAHooks().isPinnedPtr(const_cast<void*>(static_cast<const void*>(self.storage().data())));
}
Tensor pin_memory(const Tensor& self, optional<at::Device>) {
  TORCH_CHECK(self.device().is_cpu(), "cannot pin '", self.toString(), "' only dense CPU tensors can be pinned");
  const auto bytes = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.dtype().itemsize());
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, at::detail::getCUDAHooks().getPinnedMemoryAllocator(), false);
  auto pinned = at::empty({0}, self.options()).set_(storage, 0, self.sizes(), self.strides());
  return pinned.copy_(self);
}

bool is_view(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::inplace_view)) return true;
  for (const auto& argument : op.schema().arguments())
    if (argument.alias_info() && !argument.alias_info()->isWrite()) return true;
  return false;
}

// Replaces CUDA kernels of other libraries (torchvision) that were loaded since the last call; returns how many.
int adopt() {
  static auto* adopted = new std::unordered_set<std::string>;
  static auto* libraries = new std::unordered_map<std::string, std::unique_ptr<torch::Library>>;
  Quiet quiet;
  auto& dispatcher = c10::Dispatcher::singleton();
  int count = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto separator = name.name.find("::");
    const auto space = name.name.substr(0, separator);
    if (space == "aten" || separator == std::string::npos) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema() || !op->hasKernelForDispatchKey(kKey) || !adopted->insert(c10::toString(name)).second) continue;
    auto& library = (*libraries)[space];
    if (!library) library = std::make_unique<torch::Library>(torch::Library::IMPL, space, kKey, __FILE__, __LINE__);
    const auto short_name = name.name.substr(separator + 2) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    library->impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    ++count;
  }
  return count;
}

int install(py::object handler) {
  auto& s = state();
  Quiet quiet;
  TORCH_CHECK(!s.installed, "edge_offload: the virtual device is installed already");
  s.handler = handler.release().ptr();
  s.next_id = 1;
  auto* library = new torch::Library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  library->impl("empty.memory_format", &empty_memory_format);
  library->impl("empty_strided", &empty_strided);
  library->impl("copy_", &copy_);
  library->impl("_local_scalar_dense", &local_scalar_dense);
  library->impl("equal", &equal);
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
  std::unordered_map<c10::DispatchKey, torch::Library*> libraries{{kKey, library}};
  const auto library_of = [&](c10::DispatchKey key) -> torch::Library& {
    auto& entry = libraries[key];
    if (!entry) entry = new torch::Library(torch::Library::IMPL, "aten", key, __FILE__, __LINE__);
    return *entry;
  };
  const auto typed = s.local ? put_typed(*library) : std::unordered_set<std::string>();
  auto& dispatcher = c10::Dispatcher::singleton();
  if (!dispatcher.findSchemaOrThrow("aten::_pin_memory", "").hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) {
    library->impl("is_pinned", &is_pinned);
    library->impl("_pin_memory", &pin_memory);
  }
  int registered = 0;
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto op = dispatcher.findOp(name);
    if (!op || !op->hasSchema()) continue;
    const std::string short_name = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    put_composed(library_of, *op, short_name);
    // up to torch 2.0 to_sparse is no composite of _to_sparse
    if (sent_composed(short_name) || (short_name.rfind("to_sparse", 0) == 0 && op->hasKernelForDispatchKey(c10::DispatchKey::CPU))) {
      library->impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&composed>());
      continue;
    }
    if (answered_locally().count(short_name) || expanded().count(short_name) || typed.count(short_name)) continue;
    if (is_view(*op)) continue;  // metadata only: torch expresses it through as_strided, which is answered here
    if (!op->hasKernelForDispatchKey(kKey)) {  // a build with CUDA has kernels for the key, which are all replaced
      if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
      if (!op->hasKernelForDispatchKey(c10::DispatchKey::CPU) && !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) continue;
    }
    library->impl(short_name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
    ++registered;
  }
  auto& above = library_of(c10::DispatchKey::AutogradCUDA);
  for (const auto& name : recorded_whole())
    if (dispatcher.findSchema({"aten::" + name.substr(0, name.find('.')), name.find('.') == std::string::npos ? "" : name.substr(name.find('.') + 1)})) {
      above.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&whole_or_parts>());
      if (typed.count(name)) continue;
      if (name == "group_norm") library->impl(name.c_str(), TORCH_FN(group_norm));
      else library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed>());
      ++registered;
    }
  above.impl("_thnn_fused_lstm_cell", TORCH_FN(lstm_cell));
  above.impl("_thnn_fused_gru_cell", TORCH_FN(gru_cell));
  for (const auto& name : whole_on_gpu()) {
    above.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&whole_on_gpu_or_parts>());
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&boxed_on_gpu>());
    ++registered;
  }
  auto* extension = new torch::Library(torch::Library::IMPL, "edge_offload", kKey, __FILE__, __LINE__);
  extension->impl("composed", torch::CppFunction::makeFromBoxedFunction<&boxed>());
  registered += adopt();
  c10::SetAllocator(kDevice, &allocator(), 1);
  using Set = void (*)(void (*)(int64_t, uint64_t), Tensor (*)(int64_t), void (*)(int64_t, const Tensor&));
  if (auto* set = reinterpret_cast<Set>(dlsym(RTLD_DEFAULT, "edge_offload_callbacks"))) set(&on_seed, &get_state, &set_state);
  s.installed = true;
  return registered;
}

at::Generator new_generator() {
  auto* make = reinterpret_cast<void (*)(at::Generator*)>(dlsym(RTLD_DEFAULT, "edge_offload_generator"));
  TORCH_CHECK(make, "edge_offload: the guard library is not loaded");
  at::Generator made;
  make(&made);
  return made;
}
void synchronize() {
  py::gil_scoped_release release;
  Hold hold;
  if (state().lagging) Streams::all().wait_all();
  if (state().local) { if (state().reporting.waiting) leave(); return; }
  flush(kBarrier);
}
// Host memory of a storage as bytes, without a copy; None if it has none.
py::object memory(uint64_t id) {
  auto& s = state();
  c10::Storage storage;
  {
    std::lock_guard<std::mutex> hold(s.drops.deaths);
    const auto match = s.drops.listed.find(id);
    if (match != s.drops.listed.end()) storage = match->second->memory;
  }
  if (!storage) return py::none();
  const int64_t bytes = storage.nbytes();
  return py::cast(at::empty({0}, at::kByte).set_(storage, 0, {bytes}, {1}));
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
// Name, key, and the results that were inferred in this process (None: the server returns them).
py::tuple entry_of(uint32_t index) {
  const auto& entry = *state().tables.by_index.at(index);
  return py::make_tuple(entry.name, py::bytes(entry.key.substr(sizeof(void*))),
                        entry.claimed ? py::object(describe(entry.returns)) : py::object(py::none()));
}
// Adds entries of calls that the program has not made yet: (number of a like call with other sizes, key, results of the
// server). Returns their numbers. Called by the handler.
std::vector<uint32_t> foretell(const py::list& calls) {
  auto& s = state();
  std::vector<uint32_t> numbers;
  for (const auto& item : calls) {
    auto call = py::cast<py::tuple>(item);
    const Entry& like = *s.tables.by_index.at(call[0].cast<uint32_t>());
    TORCH_CHECK(like.name.rfind("edge::", 0) != 0, "edge_offload: ", like.name, " is no operator");
    const std::string key = like.key.substr(0, sizeof(void*)) + call[1].cast<std::string>();
    auto match = s.tables.entries.find(key);
    auto* entry = match != s.tables.entries.end() ? match->second.get() : intern(key, like.name);
    if (!entry->dynamic && (!entry->cached || (entry->claimed && !entry->compared))) {
      const c10::FunctionSchema* schema = nullptr;  // an operator's key begins with it
      std::memcpy(&schema, key.data(), sizeof(schema));
      auto returns = parse_returns(call[2], *schema);
      if (entry->claimed && !same(entry->returns, returns)) throw py::value_error(entry->name);
      entry->returns = std::move(returns);
      entry->cached = entry->compared = true;
    }
    numbers.push_back(entry->index);
  }
  return numbers;
}
const c10::FunctionSchema* schema_of(const std::string& name) {
  const auto dot = name.find('.');
  auto op = c10::Dispatcher::singleton().findSchema({name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)});
  return op ? &op->schema() : nullptr;
}
// Sets the operators whose results' metadata is inferred in this process: `always`, for all operands; `ways`: per way, with
// the layouts in which it is correct (rules.h).
void trust(const std::vector<std::string>& always, const std::array<std::map<std::string, int>, kWays>& ways) {
  auto& s = state();
  s.inference.trusted.clear();
  s.inference.exact.clear();
  for (const auto& name : always)
    if (const auto* schema = schema_of(name)) s.inference.trusted.insert(schema);
  for (int way = 0; way < kWays; ++way)
    for (const auto& [name, layouts] : ways[way])
      if (const auto* schema = schema_of(name)) s.inference.exact[schema][way] = layouts;
}
py::bytes code_of(uint32_t segment) {
  const auto& code = state().tables.defined_segments.at(segment)->code;
  return py::bytes(reinterpret_cast<const char*>(code.data()), code.size() * sizeof(uint32_t));
}
py::dict counters() {
  auto& s = state();
  py::dict d;
  d["calls"] = s.count_calls.load();
  d["hits"] = s.tables.count_hits;
  d["flushes"] = s.count_flushes;
  d["entries"] = s.tables.by_index.size();
  d["segments"] = s.tables.defined_segments.size();
  const int64_t taken = s.taken, given = s.given;
  d["allocated"] = taken - given;
  d["peak"] = s.room.peak.load();
  d["taken"] = taken;
  d["given"] = given;
  d["storages"] = storages();
  d["storages_made"] = s.next_id - 1;
  d["storages_peak"] = std::max(storages(), s.room.storages.load());
  d["refused"] = s.room.refused.load();
  return d;
}

}  // namespace edge_offload

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&edge_offload::boxed>());
}
TORCH_LIBRARY_IMPL(_, SparseCUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&edge_offload::composed>()); }
TORCH_LIBRARY_IMPL(_, SparseCsrCUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&edge_offload::composed>()); }
TORCH_LIBRARY_IMPL(_, NestedTensorCUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&edge_offload::composed>()); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  using namespace edge_offload;
  m.def("install", &install);
  m.def("adopt", &adopt);
  m.def("synchronize", &synchronize);
  m.def("entry", &entry_of);
  m.def("segment_code", &code_of);
  m.def("foretell", &foretell);
  m.def("expect", [](int64_t segment, size_t payloads) { state().tables.expected = segment; state().tables.expected_payloads = payloads; },
        py::arg("segment"), py::arg("payloads") = 0);
  m.def("read_alone", [] { state().inference.compared.recent.clear(); });  // after a loss of storages: read only those that the program uses
  m.def("trust", &trust);
  m.def("suppose", [](bool on, const std::vector<std::string>& excluded) {
    state().inference.supposes = on;
    state().inference.never_supposed.clear();
    for (const auto& name : excluded)
      if (const auto* schema = schema_of(name)) state().inference.never_supposed.insert(schema);
  });
  m.def("distrust", [](const std::string& name) {  // called by the handler: the server's result differs from the inferred one
    if (const auto* schema = schema_of(name)) state().inference.distrusted.insert(schema);
    forget();
  });
  m.def("survey", [](bool on) { state().inference.survey = on; });
  m.def("surveyed", [] { return state().inference.surveyed; });
  m.def("refuse", [](std::unordered_map<std::string, std::string> names) { Hold hold; state().inference.refused = std::move(names); });
  m.def("per_call", [](bool on) { state().per_call = on; });
  m.def("computed_by_gpu", [](bool on) { Hold hold; state().inference.gpu = on && !state().local; });
  m.def("compute_here", [](bool watched, double look_s) {
    auto& s = state();
    TORCH_CHECK(s.next_id == 1, "edge_offload: the device is in use");
    s.local = true;
    s.watched = watched;
    s.sampling.report_interval = std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(look_s));
  }, py::arg("watched"), py::arg("look_s") = 0.0);
  m.def("lag", [](uint32_t seed) {
    TORCH_CHECK(state().local && !state().watched && state().next_id == 1, "edge_offload: calls lag where this process computes all of them");
    state().lagging = true;
    Streams::all().seed = seed;
  });
  m.def("lose", [] { state().lost = true; });
  const auto unlocked = py::call_guard<py::gil_scoped_release>();
  py::class_<Mark, std::shared_ptr<Mark>>(m, "Mark")
      .def("wait", [](const Mark& mark) { Streams::all().wait(mark.stream, mark.place); }, unlocked)
      .def_readonly("passed", &Mark::passed)
      .def_property_readonly("seconds", [](const Mark& mark) { return std::chrono::duration<double>(mark.reached.time_since_epoch()).count(); });
  m.def("new_stream", [] { return Streams::all().make(); });
  m.def("current_stream", [] { return Streams::current(); });
  m.def("use_stream", [](int64_t stream) { return std::exchange(Streams::current(), stream); });
  m.def("mark", [](int64_t stream) { return Streams::all().mark(stream); }, unlocked);
  m.def("follow", [](int64_t stream, std::shared_ptr<Mark> mark) { Streams::all().follow(stream, mark); }, unlocked);
  m.def("wait_for_stream", [](int64_t stream) { Streams::all().wait(stream); }, unlocked);
  m.def("cross", [](const Tensor& t) { context_of(t.storage().unsafeGetStorageImpl())->crossed = true; });
  m.def("report_bytes", [](bool on) { state().reporting.reports_bytes = on; });
  m.def("report_writes", [](bool on) { state().reporting.reports_writes = on; });
  m.def("wait_for", [](std::vector<uint32_t> segments) { state().reporting.awaited = std::move(segments); });
  m.def("rest_in", [](std::vector<uint32_t> segments) { state().sampling.local_segments = std::move(segments); });
  m.def("memory", &memory);
  m.def("counters", &counters);
  m.def("reset_peak", [] {
    auto& s = state();
    s.room.peak = s.taken - s.given;
    s.room.storages = storages();
    s.mark = std::min(s.room.peak.load(), s.room.limit.load());
  });
  m.def("limit_memory", [](int64_t bytes) {
    auto& s = state();
    s.room.limit = bytes;
    s.mark = std::min(s.room.peak.load(), bytes);
  });
  m.def("new_generator", &new_generator);
  m.def("default_generator", [] { return at::globalContext().defaultGenerator(c10::Device(kDevice, 0)); });
}
