#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <ostream>
#include <vector>

#include "kvm/paging_oracle.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/paging.hpp"

// Our page walk against KVM_TRANSLATE on the same random tables. KVM walks as a supervisor read and sets accessed bits.

namespace vmm::test {
namespace {

using vpmu::bit;
using vpmu::Bits;
using vpmu::page_size;

using namespace paging_bits;
constexpr std::uint64_t pages = 8;  ///< Pages that random entries point to.
constexpr int scenes = 200;
constexpr int addresses_per_scene = 8;

/// A paging mode, as far as KVM_TRANSLATE models it as the manual does.
struct OracleMode {
  std::string name;
  std::uint64_t cr4{}, efer{};
  unsigned linear_bits{};
  unsigned entry_bytes{8};
};

void PrintTo(const OracleMode& mode, std::ostream* out) { *out << mode.name; }

class TranslateOracle : public PagingOracle<OracleMode> {
 protected:
  void SetUp() override {
    PagingOracle::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (!vm_->features.execute_disable) GTEST_SKIP() << "this KVM has no execute-disable";
  }
  [[nodiscard]] std::size_t ram_bytes() const override { return (pages + 1) * page_size; }

  bool is_pae() const { return GetParam().cr4 == PAE && GetParam().efer == 0; }

  vpmu::PagingState random_scene() {
    return random_state((is_pae() ? pages : draw(pages)) * page_size, once_in(3) ? 0 : NXE);
  }

  std::uint64_t random_entry() {
    std::uint64_t word = (draw(pages) * page_size) | (random_() & Bits<11, 0>::mask);
    word |= P;
    if (!once_in(4)) word &= ~PS;
    if ((word & PS) != 0 && once_in(2)) word &= ~Bits<29, 13>::mask;
    if (once_in(6)) word |= bit(63);
    if (once_in(4)) word ^= bit(static_cast<unsigned>(draw(64)));
    // KVM gives PSE-36 pages 36 address bits whatever the physical width is.
    if (GetParam().entry_bytes == 4 && (word & PS) != 0) word &= ~Bits<20, 17>::mask;
    return word;
  }

  /// Valid PDPTEs only: KVM, like a CPU, loads them with CR3 and refuses reserved bits then; our walk reads them from
  /// memory.
  void fill_pdptes(std::uint64_t cr3) {
    for (std::uint64_t at = cr3; at < cr3 + 32; at += 8) {
      vm_->ram.poke(at, (draw(pages) * page_size) | (once_in(8) ? 0 : P));
    }
  }

  void fill_ram(const vpmu::PagingState& state) {
    for (std::uint64_t page = 0; page < pages; ++page) {
      const std::uint64_t low = random_entry();
      const std::uint64_t word = GetParam().entry_bytes == 4 ? (low & 0xffff'ffff) | (low << 32) : low;
      for (std::uint64_t at = page * page_size; at < (page + 1) * page_size; at += 8) vm_->ram.poke(at, word);
    }
    if (is_pae()) fill_pdptes(state.cr3);
  }

  std::uint64_t random_linear() {
    const unsigned excess = 64 - GetParam().linear_bits;
    const auto raw = static_cast<std::int64_t>(random_() << excess);
    return GetParam().linear_bits == 32 ? random_() & 0xffff'ffff : static_cast<std::uint64_t>(raw >> excess);
  }

  /// Our page walk for `at`. Its changes go to `expected` and not to RAM.
  vpmu::Walk walk(const vpmu::PagingState& state, vpmu::GuestLinear at, std::vector<std::byte>& expected) {
    Overlay overlay{vm_->ram};
    const vpmu::Walk result = vpmu::translate(state, overlay, at, vpmu::PagingAccess::read,
                                              vpmu::PagingPrivilege::supervisor, vpmu::AccessedDirty::set);
    for (const auto& [where, word] : overlay.changed()) {
      std::memcpy(&expected.at(where.value()), &word, GetParam().entry_bytes);
    }
    return result;
  }

  bool ram_equals(const std::vector<std::byte>& expected) const {
    return std::memcmp(vm_->ram.bytes().data(), expected.data(), expected.size()) == 0;
  }
};

const std::array oracle_modes{OracleMode{"Legacy32Bit", 0, 0, 32, 4}, OracleMode{"Legacy32BitWithPse", PSE, 0, 32, 4},
                              OracleMode{"Pae", PAE, 0, 32}, OracleMode{"FourLevel", PAE, LME | LMA, 48},
                              OracleMode{"FiveLevel", PAE | LA57, LME | LMA, 57}};
INSTANTIATE_TEST_SUITE_P(Kvm, TranslateOracle, testing::ValuesIn(oracle_modes),
                         [](const auto& param_info) { return param_info.param.name; });

TEST_P(TranslateOracle, FindsWhatOurWalkFindsAndSetsTheSameAccessedBits) {
  int found = 0;
  int refused = 0;
  for (int scene = 0; scene < scenes; ++scene) {
    const vpmu::PagingState state = random_scene();
    fill_ram(state);
    const auto loaded = vm_->load(state, vpmu::PagingPrivilege::supervisor);
    ASSERT_TRUE(loaded) << describe(loaded.error());
    std::vector<std::byte> expected{vm_->ram.bytes().begin(), vm_->ram.bytes().end()};
    for (int i = 0; i < addresses_per_scene; ++i) {
      const vpmu::GuestLinear at{random_linear()};
      const vpmu::Walk ours = walk(state, at, expected);
      SCOPED_TRACE(testing::Message() << std::hex << "linear " << at.value() << " cr0 " << state.cr0 << " cr3 "
                                      << state.cr3 << " cr4 " << state.cr4 << " efer " << state.efer << " outcome "
                                      << ours.index());
      const auto theirs = vm_->vcpu.translate(at);
      ASSERT_TRUE(theirs) << describe(theirs.error());
      const auto* mapped = std::get_if<vpmu::Mapped>(&ours);
      ++(mapped != nullptr ? found : refused);
      ASSERT_EQ(mapped != nullptr, theirs->valid);
      if (mapped != nullptr) {
        ASSERT_EQ(mapped->address.value(), theirs->at.value());
      }
      ASSERT_TRUE(ram_equals(expected)) << "accessed bits differ";
    }
  }
  EXPECT_GT(found, scenes) << "the tables must map something";
  EXPECT_GT(refused, scenes) << "the tables must refuse something";
}

}  // namespace
}  // namespace vmm::test
