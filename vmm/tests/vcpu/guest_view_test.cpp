#include "vcpu/guest_view.hpp"

#include <gtest/gtest.h>

#include <array>

#include "fakes/fake_guest.hpp"

namespace vmm::test {
namespace {

using vpmu::AccessKind;
using vpmu::GuestLinear;

constexpr std::uint64_t kernel_page = 0xFFFF'8880'0000'0000;
constexpr std::uint64_t user_page = 0x40'0000;
constexpr std::uint64_t accessed = vpmu::bit(5), dirty = vpmu::bit(6);

class GuestViewOf : public testing::Test {
 protected:
  GuestViewOf() {
    guest_.map(kernel_page, vpmu::page_size);
    guest_.map(user_page, vpmu::page_size, {.is_user = true, .is_writable = false});
  }
  std::size_t fetched(std::uint64_t at, unsigned cpl, std::size_t bytes = 16) {
    std::array<std::byte, 64> code{};
    return view_.fetch(GuestLinear{at}, std::span{code}.first(bytes), cpl);
  }
  FakeGuest guest_;
  GuestView& view_{guest_.view};
};

TEST(CplOf, IsTheStackSegments) {
  kvm_sregs sregs{};
  sregs.cs.dpl = 0;
  sregs.ss.dpl = 3;
  EXPECT_EQ(cpl_of(sregs), 3U);
}

TEST(PagingStateOf, TakesControlRegistersAndTheAlignmentFlag) {
  kvm_sregs sregs{};
  sregs.cr0 = 1;
  sregs.cr3 = 2;
  sregs.cr4 = 3;
  sregs.efer = 4;
  kvm_regs regs{};
  EXPECT_FALSE(paging_state(sregs, regs, {.physical_width = 46, .gigabyte_pages = false}).alignment_check);
  regs.rflags = vpmu::bit(18);
  const vpmu::PagingState state = paging_state(sregs, regs, {.physical_width = 46, .gigabyte_pages = false});
  EXPECT_EQ(state.cr0, 1U);
  EXPECT_EQ(state.cr3, 2U);
  EXPECT_EQ(state.cr4, 3U);
  EXPECT_EQ(state.efer, 4U);
  EXPECT_EQ(state.physical_width, 46);
  EXPECT_FALSE(state.gigabyte_pages);
  EXPECT_TRUE(state.alignment_check);
}

// SDM 3A 4.6: the DS area is accessed with supervisor privilege at any CPL; page-table isolation depends on it.
TEST_F(GuestViewOf, KernelPagesAreReachedWhileUserCodeRuns) {
  guest_.enter_ring(3);
  std::uint64_t word = 0x1234;
  EXPECT_FALSE(view_.write(GuestLinear{kernel_page}, std::as_bytes(std::span{&word, 1})));
  EXPECT_EQ(guest_.load_word(kernel_page), 0x1234U);
  EXPECT_FALSE(view_.probe(GuestLinear{kernel_page}, 8, AccessKind::write));
}

TEST_F(GuestViewOf, CurrentPrivilegeDecidesProbesOfOperands) {
  EXPECT_FALSE(view_.probe_current(GuestLinear{kernel_page}, 8, AccessKind::read));
  guest_.enter_ring(3);
  EXPECT_TRUE(view_.probe_current(GuestLinear{kernel_page}, 8, AccessKind::read));
  EXPECT_FALSE(view_.probe_current(GuestLinear{user_page}, 8, AccessKind::read));
  EXPECT_TRUE(view_.probe_current(GuestLinear{user_page}, 8, AccessKind::write)) << "read-only";
}

TEST_F(GuestViewOf, FetchLooksWithThePrivilegeOfTheCode) {
  EXPECT_EQ(fetched(user_page, 3), 16U);
  EXPECT_EQ(fetched(kernel_page, 3), 0U);
  EXPECT_EQ(fetched(kernel_page, 0), 16U);
}

TEST_F(GuestViewOf, FetchEndsWhereThePageEnds) { EXPECT_EQ(fetched(user_page + vpmu::page_size - 3, 3), 3U); }

TEST_F(GuestViewOf, LookingLeavesNoTrace) {
  fetched(user_page, 3);
  (void)view_.probe(GuestLinear{kernel_page}, 8, AccessKind::write);
  EXPECT_EQ(guest_.entry(user_page) & (accessed | dirty), 0U);
  EXPECT_EQ(guest_.entry(kernel_page) & (accessed | dirty), 0U);
}

// Rule F12.
TEST_F(GuestViewOf, WritingSetsAccessedAndDirty) {
  std::uint64_t word = 1;
  ASSERT_FALSE(view_.write(GuestLinear{kernel_page}, std::as_bytes(std::span{&word, 1})));
  EXPECT_EQ(guest_.entry(kernel_page) & (accessed | dirty), accessed | dirty);
}

TEST_F(GuestViewOf, NothingIsReachedWithoutRegisters) {
  guest_.backend.broken.insert("sregs");
  std::array<std::byte, 8> bytes{};
  const auto fault = view_.read(GuestLinear{kernel_page}, bytes);
  ASSERT_TRUE(fault);
  EXPECT_TRUE(fault->not_memory);
  EXPECT_EQ(fetched(kernel_page, 0), 0U);
  EXPECT_FALSE(view_.patch(GuestLinear{kernel_page}, bytes));
}

// SDM 3A 4.6.1: under SMAP, RFLAGS.AC lets the kernel's own instructions reach user pages, but not the processor's
// implicit accesses.
TEST_F(GuestViewOf, AcLiftsSmapOnlyForTheVcpusOwnAccesses) {
  std::array<std::byte, 8> out{};
  guest_.backend.special.cr4 |= vpmu::bit(21);
  for (const bool ac : {false, true}) {
    guest_.backend.registers.rflags = 2 | (ac ? vpmu::bit(18) : 0);
    EXPECT_TRUE(view_.read(GuestLinear{user_page}, out).has_value());
    EXPECT_TRUE(view_.probe(GuestLinear{user_page}, 8, vpmu::AccessKind::read).has_value());
    EXPECT_EQ(view_.read_current(GuestLinear{user_page}, out).has_value(), !ac);
  }
}

TEST_F(GuestViewOf, CurrentAccessesHaveTheVcpusPrivilege) {
  std::array<std::byte, 8> bytes{};
  EXPECT_FALSE(view_.write_current(GuestLinear{kernel_page}, bytes));
  guest_.enter_ring(3);
  EXPECT_TRUE(view_.read_current(GuestLinear{kernel_page}, bytes).has_value());
  EXPECT_TRUE(view_.write_current(GuestLinear{kernel_page}, bytes).has_value());
  EXPECT_FALSE(view_.write(GuestLinear{kernel_page}, bytes)) << "the processor's own";
}

}  // namespace
}  // namespace vmm::test
