#pragma once
#include <linux/kvm.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "fakes/fake_kvm.hpp"

namespace vmm::fuzz {

constexpr std::uint64_t page = 4096;
constexpr std::uint32_t max_msrs = 256, max_leaves = 256, max_filtered = 0x600 * 8;
constexpr int refusal = ENOMEM;

/// A filter with copies of its bitmaps: the fake KVM's, or the model of the VMM's own.
struct Filter {
  std::uint32_t flags{};
  struct Range {
    std::uint32_t flags, first, count;
    std::vector<std::uint64_t> bitmap;
  };
  std::vector<Range> ranges;

  /// Empty if KVM would refuse it. Reads only what KVM reads.
  static std::optional<Filter> copy(const kvm_msr_filter& from) {
    Filter f{.flags = from.flags, .ranges = {}};
    bool legal = (from.flags & ~std::uint32_t{KVM_MSR_FILTER_DEFAULT_DENY}) == 0;
    for (const kvm_msr_filter_range& r : from.ranges) {
      if (r.nmsrs == 0) continue;
      legal = legal && r.flags != 0 && (r.flags & ~3U) == 0 && r.nmsrs <= max_filtered;
      if (!legal) return std::nullopt;
      std::vector<std::uint64_t> bitmap((r.nmsrs + 63) / 64);
      std::memcpy(bitmap.data(), r.bitmap, bitmap.size() * sizeof(std::uint64_t));
      f.ranges.push_back({.flags = r.flags, .first = r.base, .count = r.nmsrs, .bitmap = std::move(bitmap)});
    }
    if (!legal || (f.flags != 0 && f.ranges.empty())) return std::nullopt;
    return f;
  }
  [[nodiscard]] bool denies(std::uint32_t msr, std::uint32_t access) const {
    for (const Range& r : ranges)
      if ((r.flags & access) != 0 && msr >= r.first && msr - r.first < r.count)
        return (r.bitmap[(msr - r.first) / 64] >> (msr - r.first) % 64 & 1) == 0;
    return flags != 0;
  }
};

struct Slot {
  std::uint64_t first, bytes;
  bool logged;
};

/// What KVM knows of a VM.
struct KvmVm {
  Filter filter;
  std::uint64_t reasons{};
  std::map<std::uint32_t, Slot> slots;
};

/// A fake KVM that checks its arguments as KVM does, and reads as much of lists as KVM reads.
class StrictKvm {
 public:
  StrictKvm() {
    fake.other_capabilities = 1;
    fake.capabilities[KVM_CAP_NR_MEMSLOTS] = 32764;
    fake.looks = [this](int fd, unsigned long request, std::uintptr_t argument) { return look(fd, request, argument); };
    fake.supported.add(0x80000001, {});
  }
  static ino_t identity(int fd) {
    struct stat is{};
    return ::fstat(fd, &is) == 0 ? is.st_ino : 0;
  }
  KvmVm& vm(int fd) { return vms_[identity(fd)]; }

  test::FakeKvm fake;
  unsigned long refused{};  ///< The request that fails, whatever its argument.
  std::uint64_t dirty{};    ///< The value of each word of KVM's dirty log.

 private:
  int look(int fd, unsigned long request, std::uintptr_t argument) {
    if (request == refused) return refusal;
    switch (request) {
      case KVM_GET_MSRS:
      case KVM_SET_MSRS: return at<kvm_msrs>(argument).nmsrs >= max_msrs ? E2BIG : 0;
      case KVM_SET_CPUID2: return at<kvm_cpuid2>(argument).nent > max_leaves ? E2BIG : 0;
      case KVM_X86_SET_MSR_FILTER: return set_filter(vm(fd), at<kvm_msr_filter>(argument));
      case KVM_ENABLE_CAP: return enable(vm(fd), at<kvm_enable_cap>(argument));
      case KVM_SET_USER_MEMORY_REGION: return set_memory(vm(fd), at<kvm_userspace_memory_region>(argument));
      case KVM_GET_DIRTY_LOG: return tell_dirty(vm(fd), at<kvm_dirty_log>(argument));
      case KVM_SET_GUEST_DEBUG:
        return (at<kvm_guest_debug>(argument).control & KVM_GUESTDBG_INJECT_BP) != 0 ? EBUSY : 0;
      default: return 0;
    }
  }
  template <class T>
  static const T& at(std::uintptr_t argument) {
    return *reinterpret_cast<const T*>(argument);
  }
  static int set_filter(KvmVm& vm, const kvm_msr_filter& filter) {
    auto copy = Filter::copy(filter);
    if (!copy) return EINVAL;
    vm.filter = std::move(*copy);
    return 0;
  }
  static int enable(KvmVm& vm, const kvm_enable_cap& cap) {
    if (cap.cap != KVM_CAP_X86_USER_SPACE_MSR) return 0;
    if ((cap.args[0] & ~7ULL) != 0) return EINVAL;
    vm.reasons = cap.args[0];
    return 0;
  }
  static int set_memory(KvmVm& vm, const kvm_userspace_memory_region& r) {
    const auto found = vm.slots.find(r.slot);
    if (r.memory_size == 0) {
      if (found == vm.slots.end()) return EINVAL;
      vm.slots.erase(found);
      return 0;
    }
    if (r.memory_size % page != 0 || r.guest_phys_addr % page != 0 || (r.flags & ~3U) != 0) return EINVAL;
    if (found != vm.slots.end() && found->second.bytes != r.memory_size) return EINVAL;
    for (const auto& [number, other] : vm.slots)
      if (number != r.slot && number >> 16 == r.slot >> 16 && r.guest_phys_addr < other.first + other.bytes &&
          other.first < r.guest_phys_addr + r.memory_size)
        return EEXIST;
    vm.slots[r.slot] = {
        .first = r.guest_phys_addr, .bytes = r.memory_size, .logged = (r.flags & KVM_MEM_LOG_DIRTY_PAGES) != 0};
    return 0;
  }
  int tell_dirty(KvmVm& vm, const kvm_dirty_log& log) const {
    const auto found = vm.slots.find(log.slot);
    if (found == vm.slots.end() || !found->second.logged) return ENOENT;
    auto* words = static_cast<std::uint64_t*>(log.dirty_bitmap);
    for (std::uint64_t n = (found->second.bytes / page + 63) / 64; n > 0; --n) *words++ = dirty;
    return 0;
  }

  std::map<ino_t, KvmVm> vms_;
};

}  // namespace vmm::fuzz
