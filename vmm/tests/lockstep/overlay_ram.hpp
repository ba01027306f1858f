#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "exec/state/platform.hpp"
#include "memory/linear.hpp"

namespace vmm {

/// Guest RAM for an engine that must not change it: each page that the engine touches is a copy. For one vCPU, which
/// must not run meanwhile.
class OverlayRam final : public vpmu::exec::Ram {
 public:
  /// `memory` must outlive it.
  explicit OverlayRam(const LinearMemory& memory) : memory_{&memory} {}

  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;
  std::byte* page(vpmu::GuestPhysical page) override;
  void will_write(vpmu::GuestPhysical page) override;

  /// Drops all copies: pages are copied from the guest's RAM again.
  void begin();
  /// Resets all copies to their initial contents. Host addresses of pages stay valid.
  void rewind();
  /// Pages touched.
  [[nodiscard]] std::size_t pages() const { return copies_.size(); }
  /// Writes the initial contents of all touched pages back to the guest's RAM.
  [[nodiscard]] bool restore_guest();
  /// The first aligned 8-byte word of a touched page that differs from the guest's RAM now. Accessed bits of page
  /// tables do not count: a processor may set them speculatively, and keeps translations whose bit was cleared.
  [[nodiscard]] std::optional<vpmu::GuestPhysical> difference() const;
  /// The aligned word at that address in the guest's RAM; 0 if that is not RAM.
  [[nodiscard]] std::uint64_t in_guest(vpmu::GuestPhysical at) const {
    return memory_->physical().read_word(at, 8).value_or(0);
  }

 private:
  /// Aligned like the guest's pages: the engine uses operands in place.
  struct alignas(vpmu::page_size) Page : std::array<std::byte, vpmu::page_size> {};
  struct Copy {
    Page* now{};
    Page* before{};   ///< The initial contents; null until the first write.
    bool is_table{};  ///< A page walk has changed something in it.
  };
  Copy* copy_of(vpmu::GuestPhysical page);
  void keep(Copy& copy);
  Page* new_page();

  const LinearMemory* memory_;
  std::map<std::uint64_t, Copy> copies_;      ///< By guest address.
  std::vector<std::unique_ptr<Page>> pages_;  ///< Those in use first.
  std::size_t used_{};
};

}  // namespace vmm
