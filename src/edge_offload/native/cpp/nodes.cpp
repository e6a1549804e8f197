// Runs a whole program without Python between its calls; execute/session/program.py does the same call by call.
//
// The executor builds a Node from the instructions of a Program: kernels, allocations, reads and uploads. Any other call is left
// to the session, which gets its operands and returns its results. A Node holds no storage between two runs. Its arguments come
// from the session; accesses beyond a storage are refused.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/pybind.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace edge_offload {

using at::Tensor;
using c10::IValue;

// Same values as in instructions.py.
enum How { kKernel, kAllocation, kRead, kWrite, kSession };
enum Field { kSize, kStride, kOffset };

// Reasons why a step does not fit the session, as in program.py; the text is the client's error.
enum Why { kUnfit = -1, kMalformed = -2, kNoRoom = -3, kTooLong = -4 };
struct Unfit : std::runtime_error {
  Unfit(Why why, const std::string& text) : std::runtime_error(text), why(why) {}
  Why why;
};
// The program can only be run call by call.
struct Unsupported : std::runtime_error { using std::runtime_error::runtime_error; };

constexpr int kMostPlaces = 1 << 20;

struct Layout {
  struct Hole { int field, dimension, value; };
  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset;
  std::vector<Hole> holes;
};
struct Call {
  struct Fetched { int reg, place, layout; };
  struct Hole { int position, reg; };
  struct Several { int position; bool optional; std::vector<int> registers; };
  struct Integer { int position, item, value; };
  struct New { int output, place, ordinal; bool stored; };
  struct Description { int kind, reference, reg; };
  int how;
  std::string name;
  std::vector<IValue> arguments;
  std::vector<Fetched> fetched;
  std::vector<Hole> holes;
  std::vector<Several> lists;
  std::vector<Integer> integers;
  std::vector<New> made;
  std::vector<Description> descriptions;
  bool is_described, final;
  std::vector<int> done, dropped, references;
  int index, upload, position;
  c10::optional<c10::OperatorHandle> op;
};

std::vector<int> numbers(const py::handle& items) {
  std::vector<int> values;
  for (auto item : items) values.push_back(item.cast<int>());
  return values;
}
int64_t at_least_zero(int64_t value) {
  if (value < 0) throw Unfit(kMalformed, "a node asks for a negative size, stride or offset");
  return value;
}
// Formats sizes as a Python tuple.
std::string written(c10::IntArrayRef sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + (sizes.size() == 1 ? ",)" : ")");
}
c10::OperatorHandle operator_of(const std::string& name) {
  const auto dot = name.find('.', name.find("::") + 2);
  const auto handle = c10::Dispatcher::singleton().findSchema(
      {name.substr(0, dot), dot == std::string::npos ? std::string() : name.substr(dot + 1)});
  if (!handle) throw Unsupported(name);
  return *handle;
}

// Dense copy of a tensor on the host.
Tensor host_copy(const Tensor& tensor) {
  return tensor.to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous();
}
// Copy of all bytes of a storage.
Tensor copy_of(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  auto flat = at::empty({0}, at::TensorOptions().dtype(at::kByte).device(tensor.device()));
  return flat.set_(storage, 0, {bytes}, {1}).clone();
}
// A tensor over the storage of a buffer: an existing one, or else a new one.
Tensor tensor_in(const py::object& buffer) {
  static PyObject* has = PyUnicode_InternFromString("_tensor");
  static PyObject* name = PyUnicode_InternFromString("tensor");
  const auto given = py::reinterpret_steal<py::object>(PyObject_GetAttr(buffer.ptr(), has));
  if (given && THPVariable_Check(given.ptr())) return THPVariable_Unpack(given.ptr());
  if (!given) PyErr_Clear();
  const auto attribute = py::reinterpret_steal<py::object>(PyObject_GetAttr(buffer.ptr(), name));
  if (!attribute) throw py::error_already_set();
  return THPVariable_Unpack(attribute.ptr());
}
// Address and size of storages, 8 bytes each, to which a CUDA graph is bound. Empty if one of them does not exist.
py::bytes addresses(const py::dict& buffers, const std::vector<int64_t>& live) {
  std::string packed;
  packed.reserve(16 * live.size());
  for (auto number : live) {
    const auto key = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
    PyObject* buffer = PyDict_GetItemWithError(buffers.ptr(), key.ptr());
    if (!buffer) return py::bytes();
    const auto tensor = tensor_in(py::reinterpret_borrow<py::object>(buffer));
    const auto& storage = tensor.storage();
    const uint64_t facts[2] = {reinterpret_cast<uint64_t>(storage.data()), storage.nbytes()};
    packed.append(reinterpret_cast<const char*>(facts), sizeof(facts));
  }
  return py::bytes(packed);
}
py::list described(const Tensor& tensor, int kind, int reference) {
  py::list sizes, strides, entry, item;
  for (auto size : tensor.sizes()) sizes.append(size);
  for (auto stride : tensor.strides()) strides.append(stride);
  item.append(kind);
  item.append(reference);
  item.append(static_cast<int>(tensor.scalar_type()));
  item.append((tensor.is_conj() ? 1 : 0) | (tensor.is_neg() ? 2 : 0));
  item.append(sizes);
  item.append(strides);
  item.append(tensor.storage_offset());
  item.append(static_cast<int64_t>(tensor.storage().nbytes()));
  entry.append("t");
  entry.append(item);
  return entry;
}

class Node {
 public:
  // `layouts`, `instructions`: a Program's; `registers`: how many there are; `live`: places of the storages that existed
  // before, of which `written` are written to; `buffer`: the class of buffers (StorageBuffer).
  Node(const py::list& layouts, int registers, const py::list& instructions, const py::list& live, const py::list& written,
       const py::object& buffer, c10::Device device)
      : registers_(registers), buffer_class_(buffer), device_(device) {
    for (auto number : numbers(live)) {
      live_.push_back(number);
      places_ = std::max(places_, place(number) + 1);
    }
    for (auto item : layouts) layouts_.push_back(layout(py::cast<py::tuple>(item)));
    for (auto item : instructions) calls_.push_back(call(item));
    for (auto number : numbers(written)) {
      check(number, places_);
      written_.push_back(number);
    }
  }

  // One run.
  //
  // Args: buffers by the number of the storage, which new ones are added to; number of the first new storage of the step; numbers
  // of the storages that existed before; `values` of the integers; what is uploaded; whether what is written is saved; how many
  // bytes and storages the session may hold more; how many bytes may be read; memory for the name of the operator that is
  // running, or None; `session`: runs what is left to it. That gets the position of an instruction, its operands by place (buffers,
  // or tensors that have none), and the bytes that new storages have since it was last called; it returns the buffers of operands
  // and results by place, and how many bytes and storages the session may hold more.
  // Returns (numbers of new storages, their bytes, saved: (buffer, bytes before it was written) ..., results by call, results of
  // the last call or None, what was read or None, None or (call, what was raised)). If the node does not fit the call is -1.
  // Calls before an error have taken effect.
  py::tuple run(const py::dict& buffers, int64_t base, const std::vector<int64_t>& live, const std::vector<int64_t>& values,
                const std::vector<Tensor>& uploads, bool save, int64_t room, int64_t most, int64_t readable, const py::object& note,
                const py::object& session) {
    c10::InferenceMode inference;
    Run now{*this, values, room, std::vector<Tensor>(registers_), std::vector<Tensor>(places_), {}};
    py::list created, saved;
    py::dict descriptions;
    int64_t stored = 0;
    py::object results = py::none(), read = py::none(), failed = py::none();
    py::buffer_info memory;
    if (!note.is_none()) memory = py::cast<py::buffer>(note).request(true);
    int index = -1;
    const std::vector<Call::New> no_results;
    try {
      std::vector<py::object> place_buffers(places_);  // buffers by place, as far as there are any
      for (size_t i = 0; i < live_.size(); ++i) {
        const auto number = live.at(i);
        const auto key = py::reinterpret_steal<py::object>(PyLong_FromLongLong(number));
        PyObject* buffer = PyDict_GetItemWithError(buffers.ptr(), key.ptr());
        if (!buffer) throw Unfit(kUnfit, "storage " + std::to_string(number) + " does not exist: the call that should have made it failed, or it was freed");
        place_buffers[live_[i]] = py::reinterpret_borrow<py::object>(buffer);
        now.places[live_[i]] = tensor_in(place_buffers[live_[i]]);
      }
      for (auto number : written_)
        if (save && place_buffers[number]) saved.append(py::make_tuple(place_buffers[number], copy_of(now.places[number])));
      const py::gil_scoped_release unlocked;  // a server's other threads answer while kernels run
      for (const auto& call : calls_) {
        if (memory.ptr) leave_name(call.name, memory);
        index = -1;
        for (const auto& item : call.fetched) now.registers[item.reg] = now.view(item.place, item.layout);
        if (call.how == kKernel) {
          now.prepare(call);
          index = call.index;
          call.op->callBoxed(now.stack);
          index = -1;
        } else if (call.how == kAllocation) {
          now.allocate(call);
        } else if (call.how == kWrite) {
          index = call.index;
          now.registers[call.holes[0].reg].copy_(uploads.at(call.upload));
          index = -1;
        } else if (call.how == kSession) {
          const py::gil_scoped_acquire gil;
          index = call.index;
          py::dict operands;
          for (auto number : call.references) {
            if (place_buffers[number]) operands[py::int_(number)] = place_buffers[number];
            else if (now.places[number].defined()) operands[py::int_(number)] = py::cast(now.places[number]);
          }
          const auto counted = std::exchange(stored, 0);
          const auto answer = py::cast<py::tuple>(session(call.position, operands, counted));
          index = -1;
          now.room = answer[1].cast<int64_t>();
          most = answer[2].cast<int64_t>();
          for (auto item : py::cast<py::dict>(answer[0])) {
            const auto number = item.first.cast<int>();
            if (number < 0 || number >= places_) continue;  // unused
            place_buffers[number] = py::reinterpret_borrow<py::object>(item.second);
            now.places[number] = tensor_in(place_buffers[number]);
          }
        } else {
          const auto& tensor = now.registers[call.holes[0].reg];
          if (tensor.numel() > readable / static_cast<int64_t>(tensor.element_size())) throw Unfit(kTooLong, "one answer would bring back too much");
          readable -= static_cast<int64_t>(tensor.nbytes());
          const auto copied = host_copy(tensor);
          const py::gil_scoped_acquire gil;
          read = py::cast(copied);
        }
        for (const auto& item : call.how == kSession ? no_results : call.made) {
          auto& place = now.places[item.place];
          if (call.how == kKernel) place = now.result(item.output);
          if (!item.stored) continue;
          const py::gil_scoped_acquire gil;
          const py::int_ number(base + item.ordinal);
          if (--most < 0 || PyDict_Contains(buffers.ptr(), number.ptr()))
            throw Unfit(kMalformed, "storage " + std::to_string(base + item.ordinal) + " exists already, or the session holds too many");
          const auto buffer = py::reinterpret_steal<py::object>(
              PyObject_CallFunctionObjArgs(buffer_class_.ptr(), Py_None, py::reinterpret_steal<py::object>(THPVariable_Wrap(place)).ptr(), nullptr));
          if (!buffer || PyDict_SetItem(buffers.ptr(), number.ptr(), buffer.ptr())) throw py::error_already_set();
          created.append(number);
          if (has_session_calls_) place_buffers[item.place] = buffer;
          const auto bytes = static_cast<int64_t>(place.storage().nbytes());
          now.room -= bytes;
          stored += bytes;
        }
        if (call.is_described && call.how != kSession) {
          const py::gil_scoped_acquire gil;
          py::list description;
          int output = 0;
          for (const auto& item : call.descriptions) {
            description.append(described(item.reg < 0 ? now.result(output) : now.registers[item.reg], item.kind, item.reference));
            ++output;
          }
          if (call.final) results = description;
          else descriptions[py::int_(call.index)] = description;
        }
        now.stack.clear();
        for (auto number : call.done) now.registers[number] = Tensor();
        for (auto number : call.dropped) {
          now.places[number] = Tensor();
          if (!place_buffers[number]) continue;
          const py::gil_scoped_acquire gil;
          place_buffers[number] = py::object();
        }
      }
    } catch (const Unfit& error) {
      failed = py::make_tuple(static_cast<int>(error.why), error.what());
    } catch (...) {
      torch::translate_exception_to_python(std::current_exception());
      py::error_already_set raised;
      if (!raised.matches(PyExc_Exception)) throw raised;
      failed = py::make_tuple(index, raised.value());
    }
    return py::make_tuple(created, stored, saved, descriptions, results, read, failed);
  }

 private:
  struct Run {
    const Node& node;
    const std::vector<int64_t>& values;
    int64_t room;
    std::vector<Tensor> registers, places;  // of a place: some tensor in it
    std::vector<IValue> stack;

    int64_t value(int number) const { return values.at(number); }

    // View of the storage of `place`; the tensor that a kernel returned, if it has that layout.
    Tensor view(int place, int number) {
      const auto& tensor = places[place];
      if (!tensor.defined()) throw Unfit(kMalformed, "a node uses value " + std::to_string(place) + " before it exists");
      const auto& layout = node.layouts_[number];
      c10::SmallVector<int64_t, 6> sizes(layout.sizes.begin(), layout.sizes.end()), strides(layout.strides.begin(), layout.strides.end());
      int64_t offset = layout.offset;
      for (const auto& hole : layout.holes)
        (hole.field == kSize ? sizes[hole.dimension] : hole.field == kStride ? strides[hole.dimension] : offset) = at_least_zero(value(hole.value));
      const bool plain = tensor.scalar_type() == layout.dtype && !tensor.is_conj() && !tensor.is_neg();
      if (plain && tensor.storage_offset() == offset && tensor.sizes() == c10::IntArrayRef(sizes) && tensor.strides() == c10::IntArrayRef(strides))
        return tensor;
      const auto& storage = tensor.storage();
      const auto itemsize = static_cast<int64_t>(c10::elementSize(layout.dtype));
      __int128 last = offset;
      bool empty = false;
      for (size_t i = 0; i < sizes.size(); ++i) {
        empty = empty || sizes[i] == 0;
        last += static_cast<__int128>(sizes[i] - 1) * strides[i];  // less than 2^64 dimensions of less than 2^126
        if (last > INT64_MAX) last = INT64_MAX;
      }
      if (!empty && (last + 1) * itemsize > static_cast<__int128>(storage.nbytes()))
        throw Unfit(kUnfit, "a tensor of " + written(sizes) + " reaches beyond its storage of " + std::to_string(storage.nbytes()) + " bytes");
      const auto key = c10::computeDispatchKey(layout.dtype, c10::kStrided, tensor.device());
      auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(layout.dtype));
      made.unsafeGetTensorImpl()->set_sizes_and_strides(c10::IntArrayRef(sizes), c10::IntArrayRef(strides), offset);
      return made;
    }

    // Puts the arguments of a call on the stack.
    void prepare(const Call& call) {
      stack.assign(call.arguments.begin(), call.arguments.end());
      for (const auto& hole : call.holes) stack[hole.position] = registers[hole.reg];
      for (const auto& several : call.lists) {
        if (several.optional) {
          c10::List<c10::optional<Tensor>> items;
          items.reserve(several.registers.size());
          for (auto reg : several.registers) items.push_back(reg >= 0 ? c10::optional<Tensor>(registers[reg]) : c10::nullopt);
          stack[several.position] = std::move(items);
        } else {
          c10::List<Tensor> items;
          items.reserve(several.registers.size());
          for (auto reg : several.registers) items.push_back(registers[reg]);
          stack[several.position] = std::move(items);
        }
      }
      for (const auto& item : call.integers) {
        auto& argument = stack[item.position];
        if (item.item < 0) { argument = value(item.value); continue; }
        auto items = argument.toIntVector();
        items.at(item.item) = value(item.value);
        argument = items;
      }
    }

    void allocate(const Call& call) {
      const auto size = call.integers.empty() ? call.arguments.at(0).toInt() : value(call.integers[0].value);
      if (size < 0 || size > room) throw Unfit(kNoRoom, std::to_string(size));
      places[call.made.at(0).place] = at::empty({size}, at::TensorOptions().dtype(at::kByte).device(node.device_));
    }

    const Tensor& result(int output) const {
      const auto& result = stack.at(output);
      TORCH_CHECK(result.isTensor() && result.toTensor().defined(), "edge_offload: a kernel returned no tensor where it always did");
      return result.toTensor();
    }
  };

  static Layout layout(const py::tuple& item) {
    const auto fields = py::cast<py::tuple>(item[0]);
    if (fields[1].cast<int>() != 0) throw Unsupported("a conjugated or negated view");
    Layout layout{static_cast<at::ScalarType>(fields[0].cast<int>()), fields[2].cast<std::vector<int64_t>>(), fields[3].cast<std::vector<int64_t>>(),
                 fields[4].cast<int64_t>(), {}};
    for (auto size : layout.sizes) if (size < 0) throw Unsupported("a negative size");
    for (auto stride : layout.strides) if (stride < 0) throw Unsupported("a negative stride");
    if (layout.offset < 0 || layout.sizes.size() != layout.strides.size()) throw Unsupported("a layout that is none");
    for (auto hole : item[1]) {
      const auto facts = numbers(hole);
      if (facts[0] != kOffset && facts[1] >= static_cast<int>(layout.sizes.size())) throw Unsupported("a hole outside its layout");
      layout.holes.push_back({facts[0], facts[1], facts[2]});
    }
    return layout;
  }

  Call call(const py::handle& op) {
    Call call;
    call.how = op.attr("how").cast<int>();
    if (call.how > kSession) throw Unsupported("a kind of call that is not known here");
    call.position = static_cast<int>(calls_.size());
    call.references = numbers(op.attr("references"));
    for (auto number : call.references) places_ = std::max(places_, place(number) + 1);
    has_session_calls_ = has_session_calls_ || call.how == kSession;
    call.name = op.attr("entry").attr("name").cast<std::string>();
    for (auto item : op.attr("fetched")) {
      const auto facts = numbers(item);
      check(facts[0], registers_);
      places_ = std::max(places_, place(facts[1]) + 1);
      check(facts[2], layouts_.size());
      call.fetched.push_back({facts[0], facts[1], facts[2]});
    }
    for (auto item : op.attr("holes")) {
      const auto facts = numbers(item);
      check(facts[1], registers_);
      call.holes.push_back({facts[0], facts[1]});
    }
    for (auto item : op.attr("integers")) {
      const auto facts = numbers(item);
      call.integers.push_back({facts[0], facts[1], facts[2]});
    }
    for (auto item : op.attr("new")) {
      const auto facts = numbers(item);
      places_ = std::max(places_, place(facts[1]) + 1);
      call.made.push_back({facts[0], facts[1], facts[2], facts[3] != 0});
    }
    const py::object described = op.attr("descriptions");
    call.is_described = !described.is_none();
    if (call.is_described) {
      for (auto item : described) {
        const auto facts = numbers(item);
        if (facts[2] >= 0) check(facts[2], registers_);
        call.descriptions.push_back({facts[0], facts[1], facts[2]});
      }
    }
    call.final = op.attr("final").cast<bool>();
    call.done = numbers(op.attr("done"));
    call.dropped = numbers(op.attr("dropped"));
    for (auto number : call.done) check(number, registers_);
    for (auto number : call.dropped) check(number, places_);
    call.index = op.attr("call").cast<int>();
    call.upload = op.attr("upload").cast<int>();
    if (call.how == kKernel) arguments(op, call);
    else if (call.how == kAllocation) call.arguments.push_back(op.attr("arguments").cast<py::list>()[0].cast<int64_t>());
    return call;
  }

  // Parses the arguments of a kernel, with the holes for values of a run.
  void arguments(const py::handle& op, Call& call) {
    call.op = operator_of(call.name);
    const auto& schema = call.op->schema();
    torch::jit::ToIValueAllowNumbersAsTensors numbers_too(true);
    const auto positional = op.attr("arguments").cast<py::list>();
    const auto named = op.attr("named").cast<py::dict>();
    std::vector<int> filled;
    for (const auto& hole : call.holes) filled.push_back(hole.position);
    for (auto item : op.attr("lists")) {
      const auto pair = py::cast<py::tuple>(item);
      Call::Several several{pair[0].cast<int>(), false, numbers(pair[1])};
      check(several.position, schema.arguments().size());
      for (auto reg : several.registers) if (reg >= 0) check(reg, registers_);
      const auto& type = schema.arguments()[several.position].type();
      const auto list = type->cast<c10::ListType>();
      if (!list) throw Unsupported("a list of tensors where the schema has none");
      several.optional = list->getElementType()->kind() == c10::TypeKind::OptionalType;
      if (!several.optional && std::count(several.registers.begin(), several.registers.end(), -1)) throw Unsupported("a list with a gap");
      filled.push_back(several.position);
      call.lists.push_back(std::move(several));
    }
    for (size_t i = 0; i < schema.arguments().size(); ++i) {
      if (std::count(filled.begin(), filled.end(), static_cast<int>(i))) { call.arguments.emplace_back(); continue; }
      const auto& argument = schema.arguments()[i];
      py::object given;
      if (i < positional.size()) given = positional[i];
      else if (named.contains(argument.name())) given = named[argument.name().c_str()];
      else throw Unsupported("an argument is missing");
      try {
        call.arguments.push_back(torch::jit::toIValue(given, argument.type(), argument.N()));
      } catch (const std::exception&) {
        throw Unsupported("an argument of another kind");
      }
    }
    for (const auto& item : call.integers) {
      check(item.position, call.arguments.size());
      const auto& argument = call.arguments[item.position];
      if (item.item < 0 ? !argument.isInt() : !argument.isIntList()) throw Unsupported("a number that is no integer to the kernel");
    }
  }

  static int place(int number) {
    check(number, kMostPlaces);
    return number;
  }
  static void check(int64_t number, int64_t count) {
    if (number < 0 || number >= count) throw Unsupported("a number beyond its range");
  }
  static void leave_name(const std::string& name, const py::buffer_info& memory) {
    const auto size = static_cast<size_t>(memory.size * memory.itemsize), used = std::min(size, name.size());
    std::memcpy(memory.ptr, name.data(), used);
    std::memset(static_cast<char*>(memory.ptr) + used, 0, size - used);
  }

  int registers_, places_ = 0;
  bool has_session_calls_ = false;
  py::object buffer_class_;
  c10::Device device_;
  std::vector<int> live_, written_;
  std::vector<Layout> layouts_;
  std::vector<Call> calls_;
};

}  // namespace edge_offload

PYBIND11_MODULE(edge_offload_nodes, module) {
  module.doc() = "Nodes of a course, run without an interpreter between their calls.";
  py::register_exception<edge_offload::Unsupported>(module, "Unsupported");
  module.def("addresses", &edge_offload::addresses);
  py::class_<edge_offload::Node>(module, "Node")
      .def(py::init<const py::list&, int, const py::list&, const py::list&, const py::list&, const py::object&, c10::Device>())
      .def("run", &edge_offload::Node::run);
}
