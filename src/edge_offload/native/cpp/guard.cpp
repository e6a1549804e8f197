// Makes device type "cuda" the virtual one: device guard, hooks, profiler's clock, generators, pinned memory.
//
// The library must be loaded before `import torch`: the hooks are looked up once, early; and after torch's own CUDA
// libraries, if it has them: guard and hooks registered here take the place of theirs. It links no CUDA library and no
// Python. Overrides carry no `override` keyword on purpose: the set of virtual functions differs between versions
// of torch, and a function that a version lacks is then merely unused.
#include "torch_versions.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Allocator.h>
#include <c10/core/GeneratorImpl.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>

#pragma GCC diagnostic ignored "-Wsuggest-override"
#pragma GCC diagnostic ignored "-Winconsistent-missing-override"

namespace {

constexpr auto kDevice = c10::DeviceType::CUDA;

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  static void check(c10::Device device) {
    TORCH_CHECK(device.index() <= 0, "CUDA error: invalid device ordinal (the virtual device has one GPU, cuda:0)");
  }
  c10::DeviceType type() const { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const { check(device); return {kDevice, 0}; }
  c10::Device getDevice() const { return {kDevice, 0}; }
  void setDevice(c10::Device device) const { check(device); }
  void uncheckedSetDevice(c10::Device) const noexcept {}
  c10::Stream getStream(c10::Device) const noexcept { return c10::Stream(c10::Stream::DEFAULT, {kDevice, 0}); }
  c10::Stream getDefaultStream(c10::Device device) const { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool = false) const { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int = 0) const { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept { return stream; }
  c10::DeviceIndex deviceCount() const noexcept { return 1; }
  bool queryStream(const c10::Stream&) const { return true; }
  void synchronizeStream(const c10::Stream&) const {}
  void synchronizeDevice(const c10::DeviceIndex) const {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const {}
  void block(void*, const c10::Stream&) const {}
  bool queryEvent(void*) const { return true; }
  void synchronizeEvent(void*) const {}
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const {}
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard);

// Events of a profiler: this process does not know when calls run on the server, so they stay empty (no time).
struct Stubs final : public torch::profiler::impl::ProfilerStubs {
  using Event = edge_offload::since_2_1::ProfilerEvent;
  void record(edge_offload::since_2_3::DeviceIndexOfProfiler* device, Event*, int64_t* cpu_ns) const {
    if (device) *device = 0;
    if (cpu_ns) *cpu_ns = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  }
  float elapsed(const Event*, const Event*) const { return 0; }
  void mark(const char*) const {}
  void rangePush(const char*) const {}
  void rangePop() const {}
  bool enabled() const { return true; }
  void onEachDevice(std::function<void(int)> each) const { each(0); }
  void synchronize() const {}
};
const bool profiled = (torch::profiler::impl::registerCUDAMethods(new Stubs), true);

// A generator is a number; its state lives on the server. Setting a seed is an event of the recorded program.
struct Callbacks {
  void (*seed)(int64_t generator, uint64_t seed) = nullptr;
  at::Tensor (*state)(int64_t generator) = nullptr;
  void (*restore)(int64_t generator, const at::Tensor& state) = nullptr;
};
Callbacks callbacks;
std::atomic<int64_t> next_generator{0};

struct RemoteGenerator final : public c10::GeneratorImpl {
  RemoteGenerator()
      : c10::GeneratorImpl(c10::Device(kDevice, 0), c10::DispatchKeySet(c10::DispatchKey::CUDA)), number(next_generator++) {}
  void set_current_seed(uint64_t seed) { seed_ = seed; if (callbacks.seed) callbacks.seed(number, seed); }
  void set_offset(uint64_t) { TORCH_CHECK(false, "offsets of a remote generator cannot be set"); }
  uint64_t get_offset() const { return 0; }
  uint64_t current_seed() const { return seed_; }
  uint64_t seed() { set_current_seed(c10::detail::getNonDeterministicRandom()); return seed_; }
  void set_state(const c10::TensorImpl& state) {
    TORCH_CHECK(callbacks.restore, "edge_offload: the virtual device is not installed yet");
    callbacks.restore(number, at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const {
    TORCH_CHECK(callbacks.state, "edge_offload: the virtual device is not installed yet");
    return callbacks.state(number).getIntrusivePtr();
  }
  c10::GeneratorImpl* clone_impl() const {
    auto* clone = new RemoteGenerator();
    clone->seed_ = seed_;
    clone->set_state(*get_state());
    return clone;
  }
  int64_t number;
  uint64_t seed_ = 67280421310721;  // torch's default seed
};

// Page-locked memory is ordinary host memory here, but `is_pinned()` must answer as it would on a GPU.
struct PinnedRanges {
  std::mutex lock;
  std::map<const char*, size_t> ranges;
};
PinnedRanges& pinned() { static auto* ranges = new PinnedRanges; return *ranges; }

struct PinnedAllocator final : public edge_offload::since_2_3::Allocator {
  struct Block { c10::DataPtr memory; };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    { std::lock_guard<std::mutex> hold(pinned().lock); pinned().ranges.erase(static_cast<const char*>(block->memory.get())); }
    delete block;
  }
  c10::DataPtr allocate(size_t bytes) {
    auto* block = new Block{c10::GetAllocator(c10::DeviceType::CPU)->allocate(bytes)};
    void* start = block->memory.get();
    { std::lock_guard<std::mutex> hold(pinned().lock); pinned().ranges[static_cast<const char*>(start)] = bytes; }
    return {start, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t count) const { default_copy_data(to, from, count); }
};

}  // namespace

// Makes a generator; torch up to 2.4 makes its own kind if it is built with CUDA.
extern "C" __attribute__((visibility("default"))) void edge_offload_generator(at::Generator* made) {
  at::globalContext().defaultGenerator(c10::Device(kDevice, 0));  // takes number 0
  *made = at::Generator(c10::make_intrusive<RemoteGenerator>());
}

extern "C" __attribute__((visibility("default"))) int64_t edge_offload_number(const c10::GeneratorImpl* generator) {
  const auto* ours = dynamic_cast<const RemoteGenerator*>(generator);
  TORCH_CHECK(ours, "edge_offload: a CUDA generator that the virtual device did not make");
  return ours->number;
}

extern "C" __attribute__((visibility("default"))) void edge_offload_callbacks(
    void (*seed)(int64_t, uint64_t), at::Tensor (*state)(int64_t), void (*restore)(int64_t, const at::Tensor&)) {
  callbacks = {seed, state, restore};
}

namespace at {  // the registry looks for the class in at::
struct EdgeOffloadHooks final : public at::CUDAHooksInterface {
  using Number = edge_offload::since_2_1::DeviceNumber;
  static inline std::atomic<int64_t> plans{4096};  // capacity of the cache of FFT plans, as a program sets it
  explicit EdgeOffloadHooks(at::CUDAHooksArgs) {}
  void init() const {}
  void initCUDA() const {}
  bool hasCUDA() const { return true; }
  bool hasCuDNN() const { return false; }
  bool hasMAGMA() const { return false; }
  std::string showConfig() const { return "  - CUDA: the virtual device of edge_offload\n"; }
  int64_t cuFFTGetPlanCacheMaxSize(Number) const { return plans; }
  void cuFFTSetPlanCacheMaxSize(Number, int64_t most) const { plans = most; }
  int64_t cuFFTGetPlanCacheSize(Number) const { return 0; }
  void cuFFTClearPlanCache(Number) const {}
  bool isBuilt() const { return true; }
  bool isAvailable() const { return true; }
  bool hasPrimaryContext(Number) const { return true; }
  DeviceIndex deviceCount() const { return 1; }
  int getNumGPUs() const { return 1; }
  void deviceSynchronize(Number) const {}
  DeviceIndex getCurrentDevice() const { return 0; }
  Number current_device() const { return 0; }
  void setCurrentDevice(DeviceIndex) const {}
  Device getDeviceFromPtr(void*) const { return Device(kDevice, 0); }
  bool isPinnedPtr(edge_offload::since_2_1::Pointer data) const {
    std::lock_guard<std::mutex> hold(pinned().lock);
    auto after = pinned().ranges.upper_bound(static_cast<const char*>(data));
    if (after == pinned().ranges.begin()) return false;
    --after;
    return static_cast<const char*>(data) < after->first + after->second;
  }
  Allocator* getPinnedMemoryAllocator() const { static auto* allocator = new PinnedAllocator; return allocator; }
  const Generator& getDefaultGenerator(DeviceIndex = -1) const {
    static auto* generator = new Generator(c10::make_intrusive<RemoteGenerator>());
    return *generator;
  }
  const Generator& getDefaultCUDAGenerator(DeviceIndex = -1) const { return getDefaultGenerator(); }  // torch up to 2.4
  Generator getNewGenerator(DeviceIndex = -1) const {
    getDefaultGenerator();  // takes number 0
    return Generator(c10::make_intrusive<RemoteGenerator>());
  }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
C10_REGISTER_CLASS_WITH_PRIORITY(CUDAHooksRegistry, CUDAHooks, c10::REGISTRY_PREFERRED, EdgeOffloadHooks)
}  // namespace at
