// Allocation, copies between host and device, reads, and the state of random generators.
#pragma once
#include "dispatch.h"

namespace edge_offload {

inline c10::DataPtr RemoteAllocator::allocate(size_t bytes) {
  auto& s = state();
  const auto most = std::numeric_limits<int64_t>::max();
  const int64_t wanted = bytes > static_cast<size_t>(most) ? most : static_cast<int64_t>(bytes);
  if (s.local) {
    std::optional<Hold> hold;
    auto fate = Fate::kCompute;
    if (s.watched) hold.emplace();
    check_room(wanted);
    if (s.watched) {
      fate = note_or_wait(kAlloc, [&](Key& key) { key.tag('I'); key.put(static_cast<int64_t>(bytes)); });
    }
    c10::Storage memory;
    if (fate != Fate::kWait) memory = in_host_memory([&] { return host_memory(bytes); });
    if (s.lagging) new_memory(memory);
    auto* context = new_context(fate != Fate::kCompute, bytes);
    context->memory = std::move(memory);
    return pointer_to(context);
  }
  Hold hold;
  check_room(wanted);
  note_special(kAlloc, [&](Key& key) { key.tag('I'); key.put(static_cast<int64_t>(bytes)); });
  return pointer_to(new_context(true, bytes));
}

inline void grow(const c10::Storage& storage, int64_t bytes) {
  if (static_cast<int64_t>(storage.nbytes()) >= bytes) return;
  auto* implementation = storage.unsafeGetStorageImpl();
  check_room(bytes - static_cast<int64_t>(storage.nbytes()));
  if (state().lagging) Streams::all().run(Streams::current());
  if (state().local) {
    const auto fill = [&](Key& key) { key.tag('S'); key.storage(implementation); key.tag('I'); key.put(bytes); };
    if (!state().watched || note_or_wait(kResize, fill) != Fate::kWait) {
      if (state().watched) writes(implementation);
      in_host_memory([&] { at::native::resize_bytes_cpu(memory_of(implementation).unsafeGetStorageImpl(), bytes); });
    }
    storage.set_nbytes(bytes);
    hold_bytes(context_of(implementation), bytes);
    return;
  }
  note_special(kResize, [&](Key& key) {
    key.tag('S'); key.storage(storage.unsafeGetStorageImpl()); key.tag('I'); key.put(bytes);
  });
  storage.set_nbytes(bytes);
  hold_bytes(context_of(storage.unsafeGetStorageImpl()), bytes);
}

inline void on_seed(int64_t generator, uint64_t seed) {
  if (!state().installed) return;
  Hold hold;
  if (state().local) {
    if (state().watched) give_up("draws random numbers");
    auto mine = generator_of(generator);
    std::lock_guard<std::mutex> drawing(mine.mutex());
    mine.set_current_seed(seed);
    return;
  }
  note_special(kSeed, [&](Key& key) {
    key.tag('I'); key.put(generator);
    Number number;
    std::memcpy(number.bytes, &seed, 8);
    key.numbers.push_back(number);
  });
}

inline Tensor read(const Tensor& source) {
  note_special(kDownload, [&](Key& key) { key.tensor(source); });
  Tensor host;
  flush(kRead, [&](const py::object& result) { host = py::cast<Tensor>(result); });
  return host;
}

inline Tensor get_state(int64_t generator) {
  Hold hold;
  if (state().local) return state_of(generator_of(generator));
  note_special(kState, [&](Key& key) { key.tag('I'); key.put(generator); });
  Tensor state;
  flush(kRead, [&](const py::object& result) { state = py::cast<Tensor>(result); });
  return state;
}
inline void set_state(int64_t generator, const Tensor& state) {
  TORCH_CHECK(state.device().is_cpu() && state.scalar_type() == at::kByte && state.layout() == at::kStrided, "RNG state must be a torch.ByteTensor");
  Hold hold;
  if (edge_offload::state().local) {
    if (edge_offload::state().watched) give_up("draws random numbers");
    restore(generator_of(generator), state);
    return;
  }
  note_special(kRestore, [&](Key& key) {
    key.tag('I'); key.put(generator);
    key.tag('P'); key.put(static_cast<uint8_t>(at::kByte)); key.put(static_cast<uint8_t>(state.dim()));
    key.put_list(state.sizes().data(), state.dim());
    key.payloads.push_back(state);
  });
  after_call();
}

inline Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  TORCH_CHECK(self.defined() && source.defined(), "copy_: undefined tensor");
  if (on_device(self) && on_device(source)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    Stack stack{self, source, false};
    boxed(op, &stack);
    return self;
  }
  if (on_device(self)) {
    TORCH_CHECK(source.device().is_cpu(), "edge_offload: cannot copy from ", source.device(), " to the virtual device");
    if (self.numel() == 0) return self;
    TORCH_CHECK(source.layout() == at::kStrided, "edge_offload: cannot copy a ", source.layout(), " tensor to the device");
    if (state().lagging) { BelowAll below; upload_later(self, source, non_blocking); return self; }
    if (state().local) { write_on_host(self, source); return self; }
    Hold hold;
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
  if (state().lagging) { BelowAll below; download_later(self, source, non_blocking); return self; }
  if (state().local) { read_on_host(source, [&](const Tensor& host) { copy_on_host(self, host); }); return self; }
  Hold hold;
  Tensor host = read(source);
  return self.copy_(host);
}

inline at::Scalar local_scalar_dense(const Tensor& self) {
  if (state().lagging) Streams::all().wait(Streams::current());
  if (state().local) {
    at::Scalar value;
    read_on_host(self, [&](const Tensor& host) { value = host.item(); });
    return value;
  }
  Hold hold;
  return read(self).item();
}

}  // namespace edge_offload
