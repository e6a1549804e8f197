// Device memory: a storage is a number behind a pointer that nobody may follow.
#pragma once
#include "state.h"

namespace edge_offload {

inline Context* new_context(bool in_segment, int64_t bytes) {
  auto& s = state();
  std::unique_ptr<Context> context(new Context{s.next_id++});
  if (in_segment) { context->epoch = s.epoch; context->canonical = s.pending.values++; context->fresh = true; }
  if (s.lagging) context->stream = current_stream();
  hold_bytes(context.get(), bytes);
  return context.release();
}

struct RemoteAllocator final : public since_2_3::Allocator {
  c10::DataPtr allocate(size_t bytes) override;
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "edge_offload: device memory was addressed from the host");
  }
};
inline RemoteAllocator& allocator() { static auto* a = new RemoteAllocator; return *a; }

inline c10::DataPtr pointer_to(Context* context) {
  // distinct, page aligned, never dereferenced: the range is not mapped in user space
  return {reinterpret_cast<void*>(0xE000000000000000ull | (context->id << 12)), context, &release, c10::Device(kDevice, 0)};
}
inline c10::Storage new_storage(int64_t bytes, bool in_segment) {
  c10::Storage made(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                                         pointer_to(new_context(in_segment, bytes)), &allocator(), true));
  state().inference.compared.made(made);
  return made;
}

}  // namespace edge_offload
