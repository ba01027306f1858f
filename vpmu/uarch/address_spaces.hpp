#pragma once
#include <array>
#include <cstdint>

#include "uarch/state.hpp"
#include "uarch/tlb.hpp"

namespace vpmu::uarch {

/// Which translations of a thread are valid, by tags of the TLBs' keys. What is flushed has another tag from there on:
/// old translations are not found, and are evicted as what is not used. SDM 3A 4.10.1.
class AddressSpaces {
 public:
  /// From here on this PCID, which has 12 bits, is in use.
  void use(std::uint16_t pcid) { pcid_ = pcid; }
  [[nodiscard]] std::uint16_t used() const { return pcid_; }
  /// Flushes a PCID's translations, and maybe others'.
  void flush(std::uint16_t pcid) { ++flushes_[place(pcid)]; }
  /// Flushes all, those of global pages too.
  void flush_all() { ++all_; }

  /// The tag of the PCID in use. A core's threads have different ones.
  [[nodiscard]] std::uint64_t tag(unsigned thread) const {
    const std::uint64_t flushed = std::uint64_t{all_} + flushes_[place(pcid_)];
    return tag_of(flushed << 13 | std::uint64_t{pcid_} % pcids << 1 | thread);
  }
  /// The same of global pages.
  [[nodiscard]] std::uint64_t global_tag(unsigned thread) const { return tag_of(~(std::uint64_t{all_} << 1 | thread)); }
  /// Any bytes are valid.
  void visit_state(const StateVisitor& visit) {
    visit(state_bytes(flushes_));
    visit(state_bytes(all_));
    visit(state_bytes(pcid_));
  }

 private:
  static constexpr std::uint64_t pcids = 1 << 12;
  // Systems use few PCIDs, in groups that differ in a high bit.
  static constexpr std::size_t places = 64;
  static constexpr std::size_t place(std::uint16_t pcid) { return (pcid ^ pcid / places) % places; }
  /// The low bits of a product with an odd number differ for different factors.
  static constexpr std::uint64_t tag_of(std::uint64_t factor) { return factor * 0x9E37'79B9'7F4A'7C15 & Tlb::tag_bits; }

  std::array<std::uint32_t, places> flushes_{};
  std::uint32_t all_{};
  std::uint16_t pcid_{};
};

}  // namespace vpmu::uarch
