// State of the device: calls and the metadata of their results, storages, the pending segment, and earlier segments.
//
// Locking: `State::calls` orders calls and is always taken before the GIL; `State::deaths` is a leaf, taken by
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
constexpr size_t kFlushWords = 1u << 15;
constexpr size_t kMaxEntries = 1u << 18;  // distinct calls, and segments, before everything is learnt anew
constexpr size_t kMaxSegments = 1u << 16;

enum Reason : int { kRead = 0, kInfer = 1, kDynamic = 2, kAsync = 3, kCall = 4, kBarrier = 5, kCut = 6 };

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
  bool known = false;    // the metadata of its results is cached
  bool dynamic = false;  // ... and cannot be, because it depends on data
  bool claimed = false;  // ... was worked out here, and is checked by the server
  bool compared = false;  // ... or has been compared with what it said of the call
  std::vector<Return> returns;
  Entry* next = nullptr;  // the call that followed when it was made last
};

struct Context {  // the owner of a device storage: what its fake pointer stands for
  uint64_t id;
  // where calls are computed in this process (memory.h): the first tensors of the host, and what they are over
  std::atomic<c10::TensorImpl*> looked[2] = {{nullptr}, {nullptr}};
  c10::Storage memory;
  int64_t bytes = 0;
  uint64_t epoch = 0;   // segment in which `canonical` is valid
  uint32_t canonical = 0;
  bool fresh = false;   // created in that segment
  bool listed = false;  // in State::listed: a segment that was noted has named it, so that the handler may know of it
  bool spare = false;   // among the spares of a thread, as long as it has no bytes
  bool crossed = false;  // where calls lag (streams.h): another stream than the one that took the memory is known to use it,
  int64_t stream = 0;    // ... and that one
  ~Context();
  inline c10::TensorImpl* seen(const c10::TensorImpl* mine) const;
  inline bool cut() const;  // made by the segment whose uses the handler learns
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
  std::chrono::steady_clock::time_point started_at;
};
struct Known {  // a segment that has been defined
  uint32_t id;
  std::vector<uint32_t> words;
};
struct Death { uint64_t id, epoch; uint32_t canonical; bool fresh; };
struct Use { uint64_t id; uint32_t canonical, entry; Tensor value; };  // a storage, the read that tells all of it, and its bytes if they are kept

using Exact = std::array<uint8_t, 3>;  // layouts in which each way works out the metadata of an operator's results right (rules.h)

struct Bytes128 { uint64_t low, high; bool operator==(const Bytes128& o) const { return low == o.low && high == o.high; } };
struct Hash128 { size_t operator()(const Bytes128& b) const { return b.low ^ (b.high * 0x9e3779b97f4a7c15ull); } };

struct alignas(64) State {
  // what every call computed here touches, in one line of the caches: between two kernels they hold nothing of this
  std::atomic<uint64_t> next_id{1};
  std::atomic<uint64_t> count_calls{0};
  std::atomic<int64_t> taken{0}, given{0};  // bytes of the storages that the program has made, and of those it has dropped
  std::atomic<int64_t> mark{0};             // as many as it has held at most, but no more than it may hold (room.h)
  bool here = false;     // calls are computed in this process (computing.h, watching.h)
  bool watched = false;  // ... and noted as well: the handler hears of every segment that ends in a read
  bool spoiled = false;  // no inference that could be known: nothing is noted until the next read
  bool busy = false;     // the handler is running
  bool lagging = false;  // a test: what a GPU may do later happens later here, too (streams.h)
  bool lost = false;     // ... and one whose device is gone
  std::atomic<uint32_t> gone{0};  // storages that the program has dropped
  CallLock calls;
  alignas(64) std::mutex deaths;
  uint64_t epoch = 1;
  Room room;
  std::vector<Death> dead;
  Segment pending;
  std::unordered_map<std::string_view, std::unique_ptr<Entry>> entries;  // the view is into Entry::key
  std::vector<Entry*> by_index;
  Entry* last = nullptr;  // the call that was looked up last
  std::unordered_multimap<Bytes128, uint32_t, Hash128> segments;  // hash -> index in `known`; compared word by word
  std::vector<std::unique_ptr<Known>> known;
  int64_t expected = -1;  // segment that is announced as soon as so many of its uploads are there
  size_t expected_payloads = 0;
  std::unordered_set<const c10::FunctionSchema*> trusted;  // operators whose meta kernels are the CPU's own shape functions
  std::unordered_map<const c10::FunctionSchema*, Exact> exact;  // ... is right in some layouts (rules.h)
  bool supposes = false;  // what is in no table is worked out once it was right for a call of the same form (suppose.h),
  std::unordered_set<const c10::FunctionSchema*> asked;       // ... but for these
  std::unordered_set<const c10::FunctionSchema*> distrusted;  // of which nothing is worked out any more
  std::unordered_map<std::string, std::array<int8_t, 3>> supposed;  // by form: whether each way was right (1) or wrong (-1)
  bool survey = false;  // every new call is asked, and what would have been worked out is compared (survey.h)
  std::map<std::tuple<std::string, int, int>, std::pair<int, int>> surveyed;  // operator, layout, way: how often right and wrong
  Compared compared;
  std::unordered_map<std::string, std::string> refused;  // operators that the server has not, or has otherwise: why
  uint32_t generation = 0;                                 // how often entries and segments have been forgotten
  bool per_call = false;
  bool gpu = false;  // a GPU computes the calls: what has kernels of cuDNN is recorded whole (composites.h)
  bool installed = false;
  PyObject* handler = nullptr;
  // where calls are computed in this process
  bool keep = false;      // those that are noted are told with the bytes that were uploaded and read
  bool owing = false;     // the handler wants to know before memory is written
  bool waiting = false;   // the pending calls have not been computed: robot and server may compute them together
  std::vector<uint32_t> awaited, following;  // segments to wait for; those of them that the pending one begins like
  std::vector<uint32_t> known_here;          // segments that are computed here: what begins so is not noted, as a rule
  bool resting = false;                      // this one is not
  std::chrono::steady_clock::duration look{};    // as often as that the handler hears of segments that rest
  std::chrono::steady_clock::time_point heard;   // when it last did
  uint64_t heard_after = 0;                      // ... and behind how many that it was told of
  uint32_t turn = 0;                         // for the exceptions
  std::vector<uint64_t> written;             // storages that were written since the handler last heard of it
  uint64_t cut = 0;                          // a segment that ended in the middle of an inference,
  bool cut_read = false;                     // ... behind which something has been read; and what is used of it
  std::vector<Use> uses;
  std::unordered_map<uint64_t, Context*> listed;  // guarded by `deaths`
  const char* spoiled_by = "";
  uint64_t count_hits = 0, count_flushes = 0;
};
union Forever {  // never destroyed: storages outlive static destruction
  State state;
  Forever() : state() {}
  ~Forever() {}
};
inline Forever forever;
inline State& state() { return forever.state; }
inline bool Context::cut() const { return fresh && epoch == state().cut; }

inline int64_t& current_stream() { static thread_local int64_t stream = 0; return stream; }  // where calls lag

// Takes the lock on calls; lets go of the GIL while it has to wait, because the holder may need it.
struct Hold {
  std::unique_lock<CallLock> lock;
  Hold() : lock(state().calls, std::try_to_lock) {
    if (!lock.owns_lock()) {
      if (PyGILState_Check()) { py::gil_scoped_release release; lock.lock(); } else lock.lock();
    }
    TORCH_CHECK(!state().busy, "edge_offload: the device was used from inside its own handler");
  }
};

// Storages without bytes that empty tensors of this thread had, for others.
inline std::array<c10::Storage, 3>& spares() { static thread_local std::array<c10::Storage, 3> storages; return storages; }

inline uint32_t storages() { return static_cast<uint32_t>(state().next_id - 1) - state().gone; }  // that the program holds
inline void hold_bytes(Context* context, int64_t bytes) {
  auto& s = state();
  if (context->spare && bytes > 0)
    for (auto& one : spares())
      if (one && since_2_4::pointer_of(one.unsafeGetStorageImpl()).get_context() == context) one = c10::Storage();
  const int64_t more = bytes - context->bytes;
  context->bytes = bytes;
  if (more <= 0) { s.given -= more; return; }
  const int64_t now = (s.taken += more) - s.given;
  if (now > s.mark) s.mark = s.room.reached(now, storages(), s.here);
}
inline void let_go(Context* context);
inline Context::~Context() {
  auto& s = state();
  if (s.lagging) let_go(this);
  s.given += bytes;
  ++s.gone;
  if (!s.here && !(fresh && epoch == s.epoch)) s.room.untold += bytes;
  for (auto& slot : looked)
    if (auto* host = slot.load(std::memory_order_acquire)) c10::raw::intrusive_ptr::decref(host);
  if (s.here && !listed && (!s.watched || !fresh)) return;  // nobody was told of it
  std::lock_guard<std::mutex> hold(s.deaths);
  if (listed) s.listed.erase(id);
  s.dead.push_back({id, epoch, canonical, fresh});
}
inline void release(void* context) { delete static_cast<Context*>(context); }

inline Context* context_of(c10::StorageImpl* storage) {
  auto& pointer = since_2_4::pointer_of(storage);
  TORCH_CHECK(pointer.get_deleter() == &release, "edge_offload: a CUDA storage that the virtual device did not make");
  return static_cast<Context*>(pointer.get_context());
}

}  // namespace edge_offload
