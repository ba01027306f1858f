#pragma once
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "exec/platform.hpp"
#include "memory/linear.hpp"

namespace vmm {

/// Guest RAM for an engine that must not change it: each page that it touches is a copy. For one vCPU that does not run
/// meanwhile.
class OverlayRam final : public vpmu::exec::Ram {
 public:
  /// `memory` must outlive it.
  explicit OverlayRam(const LinearMemory& memory) : memory_{&memory} {}

  std::optional<std::uint64_t> read_word(vpmu::GuestPhysical at, unsigned bytes) override;
  bool exchange_word(vpmu::GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override;
  std::byte* page(vpmu::GuestPhysical page) override;
  void will_write(vpmu::GuestPhysical page) override;

  /// Forgets all copies: from here the guest's RAM is looked at anew.
  void begin();
  /// All copies are again as they were made. Host addresses of pages stay.
  void rewind();
  /// Pages touched.
  [[nodiscard]] std::size_t pages() const { return copies_.size(); }
  /// Gives the guest's RAM back what the touched pages held when their copies were made.
  [[nodiscard]] bool restore_guest();
  /// The first byte of a touched page that the guest's RAM now holds otherwise. Accessed bits of page tables do not
  /// count: a processor may look ahead, and keeps translations whose bit was cleared.
  [[nodiscard]] std::optional<vpmu::GuestPhysical> difference() const;
  /// The aligned word that the guest's RAM holds there; 0 where there is none.
  [[nodiscard]] std::uint64_t in_guest(vpmu::GuestPhysical at) const {
    return memory_->physical().read_word(at, 8).value_or(0);
  }

 private:
  /// As aligned as the guest's: the engine uses operands where they are.
  struct alignas(vpmu::page_size) Page : std::array<std::byte, vpmu::page_size> {};
  struct Copy {
    Page* now{};
    Page* before{};   ///< Null while nobody has written to it.
    bool is_table{};  ///< A page walk has changed something in it.
  };
  Copy* copy_of(vpmu::GuestPhysical page);
  void keep(Copy& copy);
  Page* new_page();

  const LinearMemory* memory_;
  std::map<std::uint64_t, Copy> copies_;      ///< By address.
  std::vector<std::unique_ptr<Page>> pages_;  ///< Those in use first.
  std::size_t used_{};
};

}  // namespace vmm
