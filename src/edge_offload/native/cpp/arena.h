// Host memory of device storages: contiguous, in huge pages.
//
// Every inference reads all weights. As separate allocations of malloc they are spread over pages of 4 kB, and the processor
// waits for the address translation and the first line of each page. Free memory is reused for blocks of its size, as by the
// allocator of a GPU. Of regions without used blocks one is retained, and the others are unmapped.
#pragma once
#include "room.h"
#include "torch_versions.h"

#include <c10/core/Allocator.h>
#include <c10/util/llvmMathExtras.h>

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

namespace edge_offload {

class Arena final : public since_2_3::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, c10::Device(c10::DeviceType::CPU)};
    std::lock_guard<std::mutex> hold(lock_);
    auto* block = take(kind_of(bytes));
    ++block->region->live;
    return {block->data, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static constexpr size_t kHuge = 2u << 20, kRegion = 16 * kHuge, kLine = 64;
  static constexpr unsigned kSteps = 8;  // sizes between two powers of two
  struct Region;
  struct Block {
    Region* region;
    char* data;
    unsigned kind;
  };
  struct Region {
    char* base;
    size_t bytes, used = 0, live = 0;
    std::deque<Block> blocks;  // its parts, used and free

    explicit Region(size_t wanted) : bytes((wanted + kHuge - 1) & ~(kHuge - 1)) {
      auto* mapped = static_cast<char*>(mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
      if (mapped == MAP_FAILED) out_of_memory("Tried to allocate " + in_units(wanted) + ": this machine has no more (edge_offload)");
      base = mapped + (-reinterpret_cast<uintptr_t>(mapped) & (kHuge - 1));  // aligned to huge pages
      if (base > mapped) munmap(mapped, base - mapped);
      if (base < mapped + kHuge) munmap(base + bytes, mapped + kHuge - base);
      madvise(base, bytes, MADV_HUGEPAGE);  // fails on kernels without huge pages: then pages are small
    }
    ~Region() { munmap(base, bytes); }
    Region(const Region&) = delete;
    Region& operator=(const Region&) = delete;
  };

  std::mutex lock_;
  std::vector<std::unique_ptr<Region>> regions_;
  std::array<std::vector<Block*>, 64 * kSteps> spare_;  // by size

  // Sizes are rounded up to cache lines, and to one of eight steps between two powers of two.
  static unsigned kind_of(size_t bytes) {
    const size_t lines = (bytes + kLine - 1) / kLine;
    if (lines < kSteps) return static_cast<unsigned>(lines);
    const unsigned octave = c10::llvm::Log2_64(lines);
    const size_t step = size_t{1} << (octave - 3);
    return (octave - 2) * kSteps + static_cast<unsigned>((lines - (size_t{1} << octave) + step - 1) / step);
  }
  static size_t bytes_of(unsigned kind) {
    if (kind < kSteps) return kind * kLine;
    return (size_t{kSteps + kind % kSteps} << (kind / kSteps - 1)) * kLine;
  }

  Block* take(unsigned kind) {
    auto& spare = spare_[kind];
    if (!spare.empty()) {
      auto* block = spare.back();
      spare.pop_back();
      return block;
    }
    const size_t bytes = bytes_of(kind);
    auto fits = [&](const std::unique_ptr<Region>& region) { return region->bytes - region->used >= bytes; };
    auto position = std::find_if(regions_.rbegin(), regions_.rend(), fits);
    if (position == regions_.rend()) {
      regions_.push_back(std::make_unique<Region>(std::max(bytes, kRegion)));
      position = regions_.rbegin();
    }
    auto& region = **position;
    region.blocks.push_back({&region, region.base + region.used, kind});
    region.used += bytes;
    return &region.blocks.back();
  }
  void give(Block* block) {
    auto* region = block->region;
    std::lock_guard<std::mutex> hold(lock_);
    spare_[block->kind].push_back(block);
    if (--region->live == 0) empty(region);
  }
  void empty(Region* region) {
    auto in_it = [&](Block* one) { return one->region == region; };
    for (auto& spare : spare_) spare.erase(std::remove_if(spare.begin(), spare.end(), in_it), spare.end());
    region->blocks.clear();
    region->used = 0;
    auto idle = [&](const std::unique_ptr<Region>& one) { return one.get() != region && one->live == 0; };
    const auto other = std::find_if(regions_.begin(), regions_.end(), idle);
    if (other != regions_.end()) regions_.erase(other);
  }
  static void release(void* block);
};
inline Arena& arena() { static auto* one = new Arena; return *one; }  // storages outlive static destruction
inline void Arena::release(void* block) { arena().give(static_cast<Block*>(block)); }

}  // namespace edge_offload
