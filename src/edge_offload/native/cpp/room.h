// Limit of the bytes that the program may use on the device; more are refused as on a GPU, before anything is computed.
#pragma once
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

namespace edge_offload {

inline std::string in_units(int64_t bytes) {
  static const char* const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double size = static_cast<double>(bytes);
  int unit = 0;
  while (size >= 1024 && unit < 6) { size /= 1024; ++unit; }
  char text[32];
  std::snprintf(text, sizeof(text), unit ? "%.2f %s" : "%.0f %s", size, units[unit]);
  return text;
}
[[noreturn]] inline void out_of_memory(const std::string& why) {
  throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, "CUDA out of memory. " + why);
}

// Counts of memory that only few calls access.
struct Room {
  std::atomic<int64_t> limit{std::numeric_limits<int64_t>::max()};  // most bytes that the program may use
  std::atomic<int64_t> peak{0};    // most bytes that it has used
  std::atomic<uint32_t> storages{0};  // number of storages at that peak
  std::atomic<uint64_t> refused{0};
  std::atomic<int64_t> unreported{0};  // bytes that it dropped, not reported to the server yet

  [[noreturn, gnu::noinline, gnu::cold]] void refuse(int64_t wanted, int64_t in_use) {
    ++refused;
    out_of_memory("Tried to allocate " + in_units(wanted) + ". GPU 0 has a total capacity of " + in_units(limit) + " of which " +
                  in_units(std::max<int64_t>(0, limit - in_use)) +
                  " is free; free tensors, or give the program more: edge-offload serve --device-memory-mb (edge_offload)");
  }
  // Records a new peak; returns the next number of bytes to check. Calls of this process are refused above the limit.
  [[gnu::noinline, gnu::cold]] int64_t reached(int64_t now, uint32_t count, bool local) {
    if (local && now > limit) refuse(now - limit, limit);
    if (now > peak) { peak = now; storages = count; }
    return std::min(peak.load(), limit.load());
  }
};

// Runs `call`, which allocates host memory; turns the allocator's general error into an OutOfMemoryError.
template <typename Call>
inline decltype(auto) in_host_memory(Call call) {
  try {
    return call();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    const std::string text = error.what_without_backtrace();
    if (text.find("DefaultCPUAllocator") == std::string::npos) throw;
    out_of_memory(text + " (edge_offload)");
  }
}

}  // namespace edge_offload
