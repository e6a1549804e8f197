// Differences of older torch releases; each namespace is named by the first release that has the newer form. Robots have 2.0
// and up (JetPack 5 has 2.1.0a0). No other source depends on the release.
#pragma once
#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/SymIntArrayRef.h>
#include <torch/version.h>

#include <cstring>
#include <memory>
#include <optional>

#define EDGE_OFFLOAD_TORCH(major, minor) (TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= (major) * 100 + (minor))

#if !EDGE_OFFLOAD_TORCH(2, 2)
#include <c10/util/Optional.h>
#endif

struct CUevent_st;

namespace edge_offload {

namespace since_2_1 {  // events of a profiler; numbers of devices and pointers of CUDA hooks; const data; sizes of nested tensors
#if EDGE_OFFLOAD_TORCH(2, 1)
using ProfilerEvent = std::shared_ptr<void>;
using DeviceNumber = c10::DeviceIndex;
using Pointer = const void*;
template <typename T> const void* data_of(const T& t) { return t.const_data_ptr(); }
template <typename T> auto nested_sizes(T* nested) { return nested->get_nested_sizes(); }
#else
using ProfilerEvent = std::shared_ptr<CUevent_st>;
using DeviceNumber = int64_t;
using Pointer = void*;
template <typename T> const void* data_of(const T& t) { return t.data_ptr(); }
template <typename T> auto nested_sizes(T* nested) { return nested->get_nested_size_tensor(); }
#endif
}  // namespace since_2_1

namespace since_2_2 {  // torch's optional is the standard library's; a convolution takes strides and dilations as symbols
#if EDGE_OFFLOAD_TORCH(2, 2)
using std::nullopt;
using std::optional;
inline c10::SymIntArrayRef strides(c10::IntArrayRef numbers) { return c10::fromIntArrayRefSlow(numbers); }
#else
using c10::nullopt;
using c10::optional;
inline c10::IntArrayRef strides(c10::IntArrayRef numbers) { return numbers; }
#endif
}  // namespace since_2_2

namespace since_2_3 {  // an allocator changes when it allocates, and copies what it has made; devices have a type of number
#if EDGE_OFFLOAD_TORCH(2, 3)
using c10::Allocator;
using DeviceIndexOfProfiler = c10::DeviceIndex;
#else
using DeviceIndexOfProfiler = int;
class Allocator : public c10::Allocator {
 public:
  virtual c10::DataPtr allocate(size_t bytes) = 0;
  virtual void copy_data(void* to, const void* from, std::size_t bytes) const = 0;
  c10::DataPtr allocate(size_t bytes) const final { return const_cast<Allocator*>(this)->allocate(bytes); }

 protected:
  static void default_copy_data(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
};
#endif
}  // namespace since_2_3

namespace since_2_4 {  // access to a storage's pointer without checks
#if EDGE_OFFLOAD_TORCH(2, 4)
inline c10::DataPtr& pointer_of(c10::StorageImpl* storage) { return storage->_mutable_data_ptr_no_checks(); }
#elif EDGE_OFFLOAD_TORCH(2, 1)
inline c10::DataPtr& pointer_of(c10::StorageImpl* storage) { return storage->mutable_data_ptr(); }
#else
inline c10::DataPtr& pointer_of(c10::StorageImpl* storage) { return storage->data_ptr(); }
#endif
}  // namespace since_2_4

using since_2_2::nullopt;
using since_2_2::optional;

}  // namespace edge_offload
