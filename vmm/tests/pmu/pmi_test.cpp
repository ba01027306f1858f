#include "pmu/pmi.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/fake_port.hpp"
#include "vpmu/bits.hpp"

namespace vmm::test {
namespace {

using Calls = std::vector<std::string>;

constexpr unsigned lvtpc = 0x340;
constexpr std::uint32_t msr_lvtpc = 0x834;
constexpr std::uint32_t mask = 1U << 16;
constexpr std::uint32_t nmi = 0x400;
constexpr std::uint32_t fixed_0xEE = 0x0EE;

/// A vCPU with a given LVTPC, in xAPIC or x2APIC mode.
class PmiAt : public testing::Test {
 protected:
  void use_xapic(std::uint32_t entry) { port_.set_apic_word(lvtpc, entry); }
  void use_x2apic(std::uint32_t entry) {
    port_.special.apic_base |= vpmu::bit(10);
    port_.msrs[msr_lvtpc] = entry;
  }
  Calls deliver(Pmi& pmi) {
    port_.calls.clear();
    EXPECT_TRUE(pmi.deliver(port_));
    return port_.calls;
  }
  FakePort port_;
};

// Rule V1, V2.
TEST_F(PmiAt, XapicPageIsReadAndOneRegisterMaskedBeforeTheNmiIsRaised) {
  use_xapic(nmi);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_EQ(port_.apic_word(lvtpc), nmi | mask);
  EXPECT_EQ(pmi.statistics().delivered_nmi, 1U);
  EXPECT_FALSE(pmi.pending());
}

// Rule V1, V2: in x2APIC mode no register page is written, so no other interrupt can be lost.
TEST_F(PmiAt, X2apicTakesOneMsrAccessEachWay) {
  use_x2apic(nmi);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"msr 0x834", "set_msr 0x834 0x10400", "nmi"}));
}

// Rule V2.
TEST_F(PmiAt, FixedVectorGoesToThisApicAfterTheMask) {
  use_xapic(fixed_0xEE);
  port_.set_apic_word(0x20, 5U << 24);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x100ee", "interrupt 5 0xee"}));
  EXPECT_EQ(pmi.statistics().delivered_fixed, 1U);
}

TEST_F(PmiAt, FixedVectorInX2apicModeUsesTheLongId) {
  use_x2apic(fixed_0xEE);
  port_.msrs[0x802] = 7;
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"msr 0x834", "set_msr 0x834 0x100ee", "msr 0x802", "interrupt 7 0xee"}));
}

TEST_F(PmiAt, NothingRequestedCostsNothing) {
  use_xapic(nmi);
  Pmi pmi{LvtpcMasked::hold};
  EXPECT_EQ(deliver(pmi), Calls{});
}

// Rule V4.
TEST_F(PmiAt, MaskedRequestIsHeldUntilTheGuestUnmasks) {
  use_xapic(nmi | mask);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), Calls{"lapic"});
  EXPECT_TRUE(pmi.pending());
  use_xapic(nmi);
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().dropped, 0U);
}

// Rule V4, option lvtpc_masked=drop.
TEST_F(PmiAt, MaskedRequestIsLostWhenSoChosen) {
  use_xapic(nmi | mask);
  Pmi pmi{LvtpcMasked::drop};
  pmi.request();
  EXPECT_EQ(deliver(pmi), Calls{"lapic"});
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().dropped, 1U);
  use_xapic(nmi);
  EXPECT_EQ(deliver(pmi), Calls{});
}

// Rule V5.
TEST_F(PmiAt, RequestsWhileMaskedJoinIntoOne) {
  use_xapic(nmi | mask);
  Pmi pmi{LvtpcMasked::hold};
  for (int i = 0; i < 4; ++i) {
    pmi.request();
    deliver(pmi);
  }
  EXPECT_EQ(pmi.statistics().joined, 3U);
  use_xapic(nmi);
  deliver(pmi);
  use_xapic(nmi);
  EXPECT_EQ(deliver(pmi), Calls{});
  EXPECT_EQ(pmi.statistics().delivered_nmi, 1U);
  EXPECT_EQ(pmi.statistics().requested, 4U);
}

// Rule V5: a request joins one that is already held, even if LVTPC has been unmasked meanwhile. The handler of a second
// interrupt would find nothing to do.
TEST_F(PmiAt, RequestMeetsTheOneThatIsHeldAlready) {
  use_xapic(nmi | mask);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  deliver(pmi);
  pmi.request();
  use_xapic(nmi);
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().joined, 1U);
}

// Rules Q5, V5; worked vector V-9: the second interrupt waits for the handler of the first to unmask LVTPC.
TEST_F(PmiAt, ThresholdAndOverflowOfOneCounterAreTwoInterrupts) {
  use_xapic(fixed_0xEE);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x100ee", "interrupt 0 0xee", "lapic"}));
  EXPECT_TRUE(pmi.pending());
  use_xapic(fixed_0xEE);
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x100ee", "interrupt 0 0xee"}));
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().joined, 0U);
}

// With KVM's policy the second request of the pair is lost: it finds LVTPC masked by the first.
TEST_F(PmiAt, SecondOfThePairIsLostWhenMaskedRequestsAreDropped) {
  use_xapic(nmi);
  Pmi pmi{LvtpcMasked::drop};
  pmi.request();
  pmi.request();
  deliver(pmi);
  EXPECT_EQ(pmi.statistics().delivered_nmi, 1U);
  EXPECT_EQ(pmi.statistics().dropped, 1U);
  EXPECT_FALSE(pmi.pending());
}

// Rule V5: at one boundary only the pair of Q5 makes two interrupts.
TEST_F(PmiAt, ThirdRequestAtOneBoundaryJoins) {
  Pmi pmi{LvtpcMasked::hold};
  for (int i = 0; i < 3; ++i) pmi.request();
  EXPECT_EQ(pmi.statistics().joined, 1U);
}

// Rule V1: SMI, INIT and ExtINT cannot be raised from outside; the request must not vanish without a trace.
TEST_F(PmiAt, DeliveryModeThatCannotBeRaisedIsCounted) {
  for (const std::uint32_t mode : {0x200U, 0x500U, 0x700U}) {
    use_xapic(mode);
    Pmi pmi{LvtpcMasked::hold};
    pmi.request();
    EXPECT_EQ(deliver(pmi), (Calls{"lapic", fmt::format("store_lvtpc {:#x}", mode | mask)}));
    EXPECT_EQ(pmi.statistics().undeliverable, 1U);
    EXPECT_FALSE(pmi.pending());
  }
}

TEST_F(PmiAt, RefusedMaskRaisesNothingAndIsReported) {
  use_xapic(nmi);
  port_.broken.insert("store_lvtpc");
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  const auto result = pmi.deliver(port_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().what, "store_lvtpc 0x10400 is broken");
  EXPECT_EQ(port_.count("nmi"), 0U);
}

// If the mask cannot be stored now, nothing is delivered or joined, and the next deliver() tries again.
TEST_F(PmiAt, MaskThatCannotBeSetNowPutsTheDeliveryOff) {
  use_xapic(nmi);
  port_.stores = Stored::not_now;
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400"}));
  EXPECT_TRUE(pmi.pending());
  EXPECT_EQ(pmi.statistics().put_off, 1U);
  port_.stores = Stored::done;
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_FALSE(pmi.pending());
}

// A PMI is delivered even if LVTPC can never be masked.
TEST_F(PmiAt, MaskThatCannotEverBeSetIsCounted) {
  use_xapic(nmi);
  port_.stores = Stored::never;
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_EQ(pmi.statistics().unmasked, 1U);
}

// SDM 3A 10.4.3: without an APIC there is no LVT.
TEST_F(PmiAt, ApicThatIsOffIsAsGoodAsMasked) {
  use_xapic(nmi);
  port_.special.apic_base &= ~vpmu::bit(11);
  Pmi pmi{LvtpcMasked::hold};
  pmi.request();
  EXPECT_EQ(deliver(pmi), Calls{"lapic"});
  EXPECT_TRUE(pmi.pending());
}

}  // namespace
}  // namespace vmm::test
