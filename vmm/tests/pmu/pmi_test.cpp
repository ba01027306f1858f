#include "pmu/pmi.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/fake_backend.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm::test {
namespace {

using Calls = std::vector<std::string>;

constexpr unsigned lvtpc = 0x340;
constexpr std::uint32_t mask = 1U << 16;
constexpr std::uint32_t nmi = 0x400;
constexpr std::uint32_t fixed_0xEE = 0x0EE;

/// A vCPU with a given LVTPC, in xAPIC or x2APIC mode.
class PmiAt : public testing::Test {
 protected:
  void use_xapic(std::uint32_t entry) { backend_.set_apic_word(lvtpc, entry); }
  void use_x2apic(std::uint32_t entry) {
    backend_.special.apic_base |= vpmu::bit(10);
    backend_.msrs[vpmu::msr::IA32_X2APIC_LVT_PMI.value()] = entry;
  }
  Calls deliver(Pmi& pmi) {
    backend_.calls.clear();
    EXPECT_TRUE(pmi.deliver(backend_));
    return backend_.calls;
  }
  FakeBackend backend_;
};

// Rule V1, V2.
TEST_F(PmiAt, XapicPageIsReadAndOneRegisterMaskedBeforeTheNmiIsRaised) {
  use_xapic(nmi);
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_EQ(backend_.apic_word(lvtpc), nmi | mask);
  EXPECT_EQ(pmi.statistics().delivered_nmi, 1U);
  EXPECT_FALSE(pmi.pending());
}

// Rule V1, V2: in x2APIC mode no register page is written, so no other interrupt can be lost.
TEST_F(PmiAt, X2apicTakesOneMsrAccessEachWay) {
  use_x2apic(nmi);
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"msr 0x834", "set_msr 0x834 0x10400", "nmi"}));
}

// Rule V2.
TEST_F(PmiAt, FixedVectorGoesToThisApicAfterTheMask) {
  use_xapic(fixed_0xEE);
  backend_.set_apic_word(0x20, 5U << 24);
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x100ee", "interrupt 5 0xee"}));
  EXPECT_EQ(pmi.statistics().delivered_fixed, 1U);
}

TEST_F(PmiAt, FixedVectorInX2apicModeUsesTheLongId) {
  use_x2apic(fixed_0xEE);
  backend_.msrs[0x802] = 7;
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"msr 0x834", "set_msr 0x834 0x100ee", "msr 0x802", "interrupt 7 0xee"}));
}

TEST_F(PmiAt, NothingRequestedCostsNothing) {
  use_xapic(nmi);
  Pmi pmi;
  EXPECT_EQ(deliver(pmi), Calls{});
}

// Rule V4.
TEST_F(PmiAt, RequestThatFindsLvtpcMaskedIsDroppedAndCounted) {
  use_xapic(nmi | mask);
  Pmi pmi;
  for (unsigned n = 1; n <= 3; ++n) {
    pmi.request();
    EXPECT_EQ(deliver(pmi), Calls{"lapic"});
    EXPECT_FALSE(pmi.pending());
    EXPECT_EQ(pmi.statistics().dropped, n);
  }
  use_xapic(nmi);
  EXPECT_EQ(deliver(pmi), Calls{}) << "nothing comes when LVTPC is unmasked";
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_EQ(pmi.statistics().requested, 4U);
  EXPECT_EQ(pmi.statistics().delivered_nmi, 1U);
}

TEST_F(PmiAt, X2apicDropsWhatItsMaskedLvtpcMeets) {
  use_x2apic(nmi | mask);
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), Calls{"msr 0x834"});
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().dropped, 1U);
}

// A delivery that is put off decides on LVTPC as it is now: the guest may unmask it before the next try.
TEST_F(PmiAt, PutOffRequestIsDroppedNowIfLvtpcIsMaskedNow) {
  use_xapic(nmi | mask);
  Pmi pmi;
  pmi.request();
  ASSERT_TRUE(pmi.deliver(backend_, false));
  EXPECT_EQ(pmi.statistics().dropped, 1U);
  use_xapic(nmi);
  pmi.request();
  ASSERT_TRUE(pmi.deliver(backend_, false));
  EXPECT_EQ(backend_.count("nmi"), 0U);
  EXPECT_TRUE(pmi.pending());
  ASSERT_TRUE(pmi.deliver(backend_));
  EXPECT_EQ(backend_.count("nmi"), 1U);
  EXPECT_EQ(pmi.statistics().dropped, 1U);
}

// Rules Q5, V5: the threshold's and the overflow's interrupt of one counter, and any others of the boundary, are one.
TEST_F(PmiAt, RequestsOfOneBoundaryAreOneInterrupt) {
  use_xapic(fixed_0xEE);
  Pmi pmi;
  for (int i = 0; i < 3; ++i) pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x100ee", "interrupt 0 0xee"}));
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().joined, 2U);
  use_xapic(fixed_0xEE);
  EXPECT_EQ(deliver(pmi), Calls{});
}

// Rule V1: SMI, INIT and ExtINT cannot be raised from outside; the request must not vanish without a trace.
TEST_F(PmiAt, DeliveryModeThatCannotBeRaisedIsCounted) {
  for (const std::uint32_t mode : {0x200U, 0x500U, 0x700U}) {
    use_xapic(mode);
    Pmi pmi;
    pmi.request();
    EXPECT_EQ(deliver(pmi), (Calls{"lapic", fmt::format("store_lvtpc {:#x}", mode | mask)}));
    EXPECT_EQ(pmi.statistics().undeliverable, 1U);
    EXPECT_FALSE(pmi.pending());
  }
}

TEST_F(PmiAt, RefusedMaskRaisesNothingAndIsReported) {
  use_xapic(nmi);
  backend_.broken.insert("store_lvtpc");
  Pmi pmi;
  pmi.request();
  const auto result = pmi.deliver(backend_);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().what, "store_lvtpc 0x10400 is broken");
  EXPECT_EQ(backend_.count("nmi"), 0U);
}

// If the mask cannot be stored now, nothing is delivered or joined, and the next deliver() tries again.
TEST_F(PmiAt, MaskThatCannotBeSetNowPutsTheDeliveryOff) {
  use_xapic(nmi);
  backend_.stores = Stored::not_now;
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400"}));
  EXPECT_TRUE(pmi.pending());
  EXPECT_EQ(pmi.statistics().put_off, 1U);
  backend_.stores = Stored::done;
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_FALSE(pmi.pending());
}

// A PMI is delivered even if LVTPC can never be masked.
TEST_F(PmiAt, MaskThatCannotEverBeSetIsCounted) {
  use_xapic(nmi);
  backend_.stores = Stored::never;
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), (Calls{"lapic", "store_lvtpc 0x10400", "nmi"}));
  EXPECT_EQ(pmi.statistics().unmasked, 1U);
}

// SDM 3A 10.4.3: without an APIC there is no LVT.
TEST_F(PmiAt, ApicThatIsOffIsAsGoodAsMasked) {
  use_xapic(nmi);
  backend_.special.apic_base &= ~vpmu::bit(11);
  Pmi pmi;
  pmi.request();
  EXPECT_EQ(deliver(pmi), Calls{"lapic"});
  EXPECT_FALSE(pmi.pending());
  EXPECT_EQ(pmi.statistics().dropped, 1U);
}

}  // namespace
}  // namespace vmm::test
