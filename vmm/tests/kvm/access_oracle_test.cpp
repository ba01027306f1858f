#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ostream>

#include "kvm/access_guest.hpp"
#include "kvm/paging_oracle.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

// Our page walk against the CPU: a guest makes the access, and the fault, CR2, the error code and the accessed and
// dirty bits must be those of the walk. Covers what KVM_TRANSLATE cannot: user mode, writes, fetches.

namespace vmm::test {
namespace {

using vpmu::bit;

using namespace paging_bits;
constexpr int cases = 600;

struct AccessMode {
  std::string name;
  std::uint64_t cr4{}, efer{};
  unsigned entry_bytes{8};
  std::vector<GuestTableLevel> levels;
  bool root_has_attributes{true};
};

void PrintTo(const AccessMode& mode, std::ostream* out) { *out << mode.name; }

/// QEMU's TCG reports reserved bits with P clear; SDM 3A 4.7: RSVD is set only if P is.
std::uint32_t as_manual(std::uint32_t error_code) {
  return (error_code & vpmu::page_fault_error::RSVD) != 0 ? error_code | vpmu::page_fault_error::P : error_code;
}

class AccessOracle : public PagingOracle<AccessMode> {
 protected:
  void SetUp() override {
    PagingOracle::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_TRUE(vm_->features.execute_disable);
    std::ranges::fill(vm_->ram.bytes(), std::byte{0});
    guest_ = std::make_unique<AccessGuest>(*vm_, GetParam().levels, GetParam().entry_bytes);
  }
  [[nodiscard]] std::size_t ram_bytes() const override { return AccessGuest::ram_bytes; }

  /// A valid entry, sometimes with a flaw.
  std::uint64_t random_entry(std::size_t level) {
    const std::uint64_t frame = guest_->frame_of(level);
    if (level == 0 && !GetParam().root_has_attributes) return frame | (once_in(16) ? 0 : P);
    const bool is_wide = GetParam().entry_bytes == 8;
    std::uint64_t word = frame | (once_in(16) ? 0 : P) | (once_in(6) ? 0 : RW) | (once_in(6) ? 0 : US);
    word |= (once_in(2) ? A : 0) | (once_in(4) ? D : 0);
    const bool is_large = level + 1 < guest_->depth() && once_in(6);
    if (is_large) word = (word & 0xfff) | PS;
    if (is_large && once_in(4)) word |= is_wide ? bit(13 + random_() % 8) : bit(21);
    if (is_wide && once_in(8)) word |= XD;
    if (is_wide && once_in(20) && vm_->features.physical_width < 52) word |= bit(vm_->features.physical_width);
    return word;
  }

  std::string describe_case(const vpmu::PagingState& state, vpmu::PagingAccess access,
                            vpmu::PagingPrivilege privilege) const {
    std::ostringstream text;
    text << std::hex << "cr0 " << state.cr0 << " cr4 " << state.cr4 << " efer " << state.efer << " ac "
         << state.alignment_check << " access " << static_cast<int>(access) << " privilege "
         << static_cast<int>(privilege) << " entries";
    for (std::size_t level = 0; level < guest_->depth(); ++level) text << " " << guest_->entry(level);
    return text.str();
  }

  std::unique_ptr<AccessGuest> guest_;
};

const std::array access_modes{
    AccessMode{"Legacy32Bit", 0, 0, 4, {{22, 10}, {12, 10}}},
    AccessMode{"Legacy32BitWithPse", PSE, 0, 4, {{22, 10}, {12, 10}}},
    AccessMode{"Pae", PAE, 0, 8, {{30, 2}, {21, 9}, {12, 9}}, false},
    AccessMode{"FourLevel", PAE, LME | LMA, 8, {{39, 9}, {30, 9}, {21, 9}, {12, 9}}},
    AccessMode{"FiveLevel", PAE | LA57, LME | LMA, 8, {{48, 9}, {39, 9}, {30, 9}, {21, 9}, {12, 9}}}};
INSTANTIATE_TEST_SUITE_P(Kvm, AccessOracle, testing::ValuesIn(access_modes),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(AccessOracle, FaultsAndMarksAsOurWalkSays) {
  int reached = 0;
  int faulted = 0;
  for (int i = 0; i < cases; ++i) {
    guest_->begin_case();
    const vpmu::PagingState state = random_state(guest_->root(), once_in(4) ? 0 : NXE);
    const auto access = static_cast<vpmu::PagingAccess>(random_() % 3);
    const auto privilege = static_cast<vpmu::PagingPrivilege>(random_() % 2);
    for (std::size_t level = 0; level < guest_->depth(); ++level) guest_->set_entry(level, random_entry(level));
    SCOPED_TRACE(describe_case(state, access, privilege));
    Overlay overlay{vm_->ram};
    const vpmu::Walk ours =
        vpmu::translate(state, overlay, guest_->linear(), access, privilege, vpmu::AccessedDirty::set);
    std::vector<std::uint64_t> marked;
    for (std::size_t level = 0; level < guest_->depth(); ++level) {
      marked.push_back(*overlay.read_word(vpmu::GuestPhysical{guest_->entry_at(level)}, GetParam().entry_bytes));
    }
    const auto theirs = guest_->run(state, access, privilege);
    ASSERT_TRUE(theirs) << describe(theirs.error());

    const auto* fault = std::get_if<vpmu::PageFault>(&ours);
    ASSERT_EQ(fault != nullptr, theirs->faulted) << "error code " << theirs->error_code;
    ++(theirs->faulted ? faulted : reached);
    if (fault != nullptr) {
      ASSERT_EQ(fault->address.value(), theirs->cr2);
      ASSERT_EQ(fault->error_code, as_manual(theirs->error_code));
      continue;
    }
    const auto* mapped = std::get_if<vpmu::Mapped>(&ours);
    ASSERT_TRUE(mapped != nullptr && mapped->address.value() == AccessGuest::target);
    // QEMU's TCG sets accessed in the PDPTEs of PAE paging, where the bit is reserved.
    for (std::size_t level = GetParam().root_has_attributes ? 0 : 1; level < guest_->depth(); ++level) {
      ASSERT_EQ(guest_->entry(level), marked.at(level)) << "level " << level;
    }
  }
  EXPECT_GT(reached, cases / 10);
  EXPECT_GT(faulted, cases / 10);
}

}  // namespace
}  // namespace vmm::test
