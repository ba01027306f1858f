#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "exec/platform.hpp"
#include "memory/linear.hpp"

namespace vmm {

/// Guest RAM for an engine that must not change it: each page that it touches is a copy. For one vCPU that does not run meanwhile.
class OverlayRam final : public vpmu::exec::Ram {
 public:
  /// `memory` must outlive it.
  explicit OverlayRam(const LinearMemory& memory) : memory_{&memory} {}

  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;
  std::byte* page(vpmu::GuestPhysical page) override;
  void will_write(vpmu::GuestPhysical) override {}

  /// Forgets all copies: from here the guest's RAM is looked at anew.
  void begin();
  /// The first byte of a touched page that the guest's RAM now holds otherwise. Accessed bits of page tables do not count: a processor
  /// may look ahead.
  [[nodiscard]] std::optional<vpmu::GuestPhysical> difference() const;
  /// The aligned word that the guest's RAM holds there; 0 where there is none.
  [[nodiscard]] std::uint64_t in_guest(vpmu::GuestPhysical at) const { return memory_->physical().read_word(at, 8).value_or(0); }

 private:
  using Page = std::array<std::byte, vpmu::page_size>;
  std::byte* copy_of(vpmu::GuestPhysical page);

  const LinearMemory* memory_;
  std::map<std::uint64_t, Page*> copies_;         ///< By address.
  std::vector<std::unique_ptr<Page>> pages_;      ///< Those in use first.
  std::vector<std::uint64_t> table_words_;        ///< Written by page walks.
};

}  // namespace vmm
