// State of the device: calls and the metadata of their results, storages, the pending segment, and earlier segments.
//
// Locking: `DeviceState::calls` orders calls and is always taken before the GIL; `Drops::deaths` is a leaf, taken by
// destructors of storages, which run wherever Python drops a tensor.
#pragma once
#include "compared.h"
#include "keys.h"
#include "lock.h"
#include "room.h"
#include "torch_versions.h"

#include <c10/core/Allocator.h>
#include <torch/extension.h>

#include <array>
#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

namespace py = pybind11;
using at::Tensor;
using c10::IValue;
using torch::jit::Stack;

namespace edge_offload {

constexpr auto kKey = c10::DispatchKey::CUDA;
constexpr size_t kFlushBytes = 8u << 20;  // uploads waiting in one segment
constexpr size_t kFlushLength = 1u << 15;
constexpr size_t kMaxEntries = 1u << 18;  // distinct calls, and segments, before the caches are emptied
constexpr size_t kMaxSegments = 1u << 16;

enum Reason : int { kRead = 0, kInfer = 1, kDynamic = 2, kAsync = 3, kCall = 4, kBarrier = 5, kCut = 6 };

// Metadata of one result of a call.
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
  bool cached = false;    // the metadata of its results is cached
  bool dynamic = false;  // ... and cannot be, because it depends on data
  bool claimed = false;  // ... was inferred in this process, and is checked by the server
  bool compared = false;  // ... and has been compared with the server's
  std::vector<Return> returns;
  Entry* next = nullptr;  // the call that followed it the last time
};

struct Context {  // owner of a device storage; its fake pointer stands for it
  uint64_t id;
  // if calls are computed in this process (memory.h): host tensors over `memory`, the first two
  std::atomic<c10::TensorImpl*> host_tensors[2] = {{nullptr}, {nullptr}};
  c10::Storage memory;
  int64_t bytes = 0;
  uint64_t epoch = 0;   // segment in which `canonical` is valid
  uint32_t canonical = 0;
  bool fresh = false;   // created in that segment
  bool listed = false;  // in Drops::listed: a noted segment refers to it, so the handler may refer to it, too
  bool spare = false;   // among the spares of a thread, until it gets bytes
  bool crossed = false;  // if calls lag (streams.h): a stream other than `stream` uses the memory, as record_stream reported;
  int64_t stream = 0;    // ... the stream that allocated it
  ~Context();
  inline c10::TensorImpl* find_host_tensor(const c10::TensorImpl* mine) const;
  inline bool cut() const;  // made by the cut segment, whose uses are reported to the handler
};

struct Segment {  // the pending one
  std::vector<uint32_t> code;  // per call: entry, canonical number of the storage of each T and S item
  std::vector<uint64_t> live;   // (canonical, id) of the storages that existed before
  uint32_t values = 0;          // canonical numbers given out
  uint64_t base = 0;            // id of its first new storage
  std::vector<Number> numbers;
  std::vector<Tensor> payloads;
  size_t payload_bytes = 0;
  uint64_t hash[2] = {0x9ae16a3b2f90404full, 0xc3a5c85c97cb3127ull};
  uint32_t calls = 0;
  std::chrono::steady_clock::time_point started_at;
};
struct DefinedSegment {  // a segment that has been defined
  uint32_t id;
  std::vector<uint32_t> code;
};
struct Death { uint64_t id, epoch; uint32_t canonical; bool fresh; };
struct Use { uint64_t id; uint32_t canonical, entry; Tensor value; };  // a storage, the entry of a read of all of it, and its bytes if they are recorded

using Exact = std::array<uint8_t, 3>;  // per way (rules.h): layouts in which it infers the metadata of an operator's results correctly

struct Bytes128 { uint64_t low, high; bool operator==(const Bytes128& o) const { return low == o.low && high == o.high; } };
struct Hash128 { size_t operator()(const Bytes128& b) const { return b.low ^ (b.high * 0x9e3779b97f4a7c15ull); } };

// What every call in this process accesses, in one cache line: kernels evict the caches between two calls. The state is
// static and value-initialised, so that bits are zero.
struct alignas(64) CallState {
  std::atomic<uint64_t> next_id{1};
  std::atomic<uint64_t> count_calls{0};
  std::atomic<int64_t> taken{0}, given{0};  // bytes of all storages that the program has made, and of those that it has dropped
  std::atomic<int64_t> mark{0};             // its peak of bytes in use, limited to the bytes that it may use (room.h)
  bool local : 1;    // calls are computed in this process (computing.h, watching.h)
  bool lagging : 1;  // test mode: work that a GPU may do later is delayed in this process, too (streams.h)
  bool lost : 1;     // ... in which the device has been lost
  bool watched = false;  // ... and noted as well: every segment that ends in a read is reported to the handler
  bool skipping = false;  // nothing is noted until the next read, because this is no inference that could be repeated
  bool busy = false;     // the handler is running
  std::atomic<uint32_t> dropped_count{0};  // storages that the program has dropped
  CallLock calls;
};
static_assert(sizeof(CallState) == 64, "one cache line");

struct alignas(64) Drops {  // storages that the program has dropped, and those that a noted segment refers to
  std::mutex deaths;
  std::vector<Death> dead;
  std::unordered_map<uint64_t, Context*> listed;  // guarded by `deaths`
};

struct CallTables {  // calls and segments that have been defined
  std::unordered_map<std::string_view, std::unique_ptr<Entry>> entries;  // the view is into Entry::key
  std::vector<Entry*> by_index;
  Entry* last = nullptr;  // result of the latest lookup
  uint64_t count_hits = 0;
  std::unordered_multimap<Bytes128, uint32_t, Hash128> segments;  // hash -> index in `defined_segments`; their codes are compared
  std::vector<std::unique_ptr<DefinedSegment>> defined_segments;
  int64_t expected = -1;  // segment to announce when `expected_payloads` of its uploads have been noted
  size_t expected_payloads = 0;
  uint32_t generation = 0;  // number of times that the caches of entries and segments were emptied
};

struct Inference {  // which results are inferred in this process, and how far that is trusted
  std::unordered_set<const c10::FunctionSchema*> trusted;  // operators whose meta kernels call the shape functions of the CPU kernels
  std::unordered_map<const c10::FunctionSchema*, Exact> exact;  // operators whose results are inferred correctly in some layouts (rules.h)
  bool supposes = false;  // infer results of operators outside both tables, once that was correct for a call of the same form (suppose.h);
  std::unordered_set<const c10::FunctionSchema*> never_supposed; // ... except for these operators
  std::unordered_set<const c10::FunctionSchema*> distrusted;  // operators whose results are not inferred any more
  std::unordered_map<std::string, std::array<int8_t, 3>> supposed;  // by form: each way was correct (1) or wrong (-1)
  bool survey = false;  // ask the server for every new call, and compare inferred results with its response (survey.h)
  std::map<std::tuple<std::string, int, int>, std::pair<int, int>> surveyed;  // operator, layout, way: numbers of correct and wrong results
  Compared compared;
  std::unordered_map<std::string, std::string> refused;  // operators that the server lacks or has in another version: reason
  bool gpu = false;  // a GPU computes the calls: composites with cuDNN kernels are recorded whole (composites.h)
};

struct Reporting {  // what the handler is told if calls are computed in this process
  bool reports_bytes = false;      // segments are reported with the bytes that they uploaded and read
  bool reports_writes = false;     // the handler is called before memory is written
  bool waiting = false;   // the pending calls have not been computed: robot and server may compute them together
  std::vector<uint32_t> awaited, following;  // segments to wait for; those of them with the pending one as their beginning
  std::vector<uint64_t> written;             // storages written since the last report to the handler
  uint64_t cut = 0;                          // epoch of a segment that ended in the middle of an inference; 0: none
  bool cut_read = false;                     // something has been read after it; `uses`: its storages that were used since
  std::vector<Use> uses;
  const char* skip_reason = "";
};

struct Sampling {  // segments that stay in this process
  std::vector<uint32_t> local_segments;          // most calls that begin one are not noted
  bool resting = false;                      // such a segment is running, and is not noted
  std::chrono::steady_clock::duration report_interval{};    // interval in which such segments are reported to the handler
  std::chrono::steady_clock::time_point reported_at;   // time of the last such report
  uint64_t reported_flushes = 0;                      // value of `count_flushes` then
  uint32_t sampler = 0;                         // random state: decides which of such segments are noted all the same
};

struct DeviceState : CallState {
  Drops drops;
  uint64_t epoch = 1;
  Room room;
  Segment pending;
  uint64_t count_flushes = 0;
  CallTables tables;
  Inference inference;
  Reporting reporting;
  Sampling sampling;
  bool per_call = false;
  bool installed = false;
  PyObject* handler = nullptr;
};
union Forever {  // never destroyed: storages outlive static destruction
  DeviceState state;
  Forever() : state() {}
  ~Forever() {}
};
inline Forever forever;
inline DeviceState& state() { return forever.state; }
inline bool Context::cut() const { return fresh && epoch == state().reporting.cut; }

inline int64_t& current_stream() { static thread_local int64_t stream = 0; return stream; }  // if calls lag

// Takes the lock on calls; releases the GIL while it waits, because the holder may need the GIL.
struct Hold {
  std::unique_lock<CallLock> lock;
  Hold() : lock(state().calls, std::try_to_lock) {
    if (!lock.owns_lock()) {
      if (PyGILState_Check()) { py::gil_scoped_release release; lock.lock(); } else lock.lock();
    }
    TORCH_CHECK(!state().busy, "edge_offload: the device was used from inside its own handler");
  }
};

// Storages without bytes of former empty tensors of this thread, for reuse.
inline std::array<c10::Storage, 3>& spares() { static thread_local std::array<c10::Storage, 3> storages; return storages; }

inline uint32_t storages() { return static_cast<uint32_t>(state().next_id - 1) - state().dropped_count; }  // number that the program uses
inline void hold_bytes(Context* context, int64_t bytes) {
  auto& s = state();
  if (context->spare && bytes > 0)
    for (auto& one : spares())
      if (one && since_2_4::pointer_of(one.unsafeGetStorageImpl()).get_context() == context) one = c10::Storage();
  const int64_t more = bytes - context->bytes;
  context->bytes = bytes;
  if (more <= 0) { s.given -= more; return; }
  const int64_t now = (s.taken += more) - s.given;
  if (now > s.mark) s.mark = s.room.reached(now, storages(), s.local);
}
inline void let_go(Context* context);
inline Context::~Context() {
  auto& s = state();
  if (s.lagging) let_go(this);
  s.given += bytes;
  ++s.dropped_count;
  if (!s.local && !(fresh && epoch == s.epoch)) s.room.unreported += bytes;
  for (auto& slot : host_tensors)
    if (auto* host = slot.load(std::memory_order_acquire)) c10::raw::intrusive_ptr::decref(host);
  if (s.local && !listed && (!s.watched || !fresh)) return;  // it was never reported
  std::lock_guard<std::mutex> hold(s.drops.deaths);
  if (listed) s.drops.listed.erase(id);
  s.drops.dead.push_back({id, epoch, canonical, fresh});
}
inline void release(void* context) { delete static_cast<Context*>(context); }

inline Context* context_of(c10::StorageImpl* storage) {
  auto& pointer = since_2_4::pointer_of(storage);
  TORCH_CHECK(pointer.get_deleter() == &release, "edge_offload: a CUDA storage that the virtual device did not make");
  return static_cast<Context*>(pointer.get_context());
}

}  // namespace edge_offload
