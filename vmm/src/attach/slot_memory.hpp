#pragma once
#include <linux/kvm.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "memory/physical_memory.hpp"

namespace vmm {

/// The guest's RAM as another VMM has given it to KVM: its memory slots. ROM can be read, not written. Slots change
/// only while no vCPU is inside (RunGate); any thread may call everything else.
class SlotMemory final : public PhysicalMemory {
 public:
  /// KVM_SET_USER_MEMORY_REGION has just succeeded: adds, moves, changes or removes the slot. A slot that is logged
  /// before and after keeps its log, as with KVM. Slots of other address spaces (SMM) are ignored.
  void set(std::uint32_t slot, std::uint32_t flags, vpmu::GuestPhysical at, std::uint64_t bytes, std::byte* host);

  /// A DirtyPageLog: remembers the page if the VMM has KVM log writes to its slot.
  void written(vpmu::GuestPhysical page);
  /// KVM_GET_DIRTY_LOG has filled `bitmap`, a bit for each page of the slot: adds the pages of written(), which KVM
  /// does not know of, and forgets them.
  void add_written(std::uint32_t slot, std::uint64_t* bitmap);

  bool read(vpmu::GuestPhysical at, std::span<std::byte> out) override;
  bool write(vpmu::GuestPhysical at, std::span<const std::byte> in) override;
  [[nodiscard]] bool contains(vpmu::GuestPhysical at, std::uint64_t bytes) const override;
  [[nodiscard]] std::byte* host_page(vpmu::GuestPhysical page) override;
  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;

 private:
  struct Slot {
    std::uint64_t first, bytes;
    std::byte* host;
    bool read_only;
    std::vector<std::atomic<std::uint64_t>> written;  ///< A bit for each page; empty where writes are not logged.
  };
  [[nodiscard]] const Slot* find(vpmu::GuestPhysical at, std::uint64_t bytes) const;
  /// Where `bytes` at `at` are in this process; null when not all of them are RAM (`for_write`: writable RAM) of one
  /// slot.
  [[nodiscard]] std::byte* place(vpmu::GuestPhysical at, std::uint64_t bytes, bool for_write) const;

  std::map<std::uint32_t, Slot> slots_;  ///< By KVM's number.
};

}  // namespace vmm
