#include "attach/carried_state.hpp"

#include <gtest/gtest.h>

#include <array>

namespace vmm {
namespace {

/// A VMM's buffer.
struct Buffer {
  std::array<std::uint64_t, carried_size / 8 + 16> words{};
  kvm_nested_state& state() { return *reinterpret_cast<kvm_nested_state*>(words.data()); }
  explicit Buffer(std::uint32_t size = carried_size) { state().size = size; }
};

PmuVcpuState some_state() {
  PmuVcpuState state;
  state.pmu.state.pmc[3] = 0x1234;
  state.pending_pmi = 1;
  return state;
}

TEST(CarriedState, ComesBackAsItWas) {
  Buffer buffer;
  buffer.state().flags = KVM_STATE_NESTED_GIF_SET;
  ASSERT_TRUE(carry(some_state(), buffer.state()));
  EXPECT_EQ(buffer.state().format, KVM_STATE_NESTED_FORMAT_SVM) << "the format of which VMMs store the data unseen";
  EXPECT_EQ(buffer.state().size, carried_size);
  EXPECT_EQ(buffer.state().flags, KVM_STATE_NESTED_GIF_SET);
  const auto back = carried(buffer.state());
  ASSERT_TRUE(back);
  EXPECT_EQ(back->pmu.state.pmc[3], 0x1234U);
  EXPECT_EQ(back->pending_pmi, 1U);
}

TEST(CarriedState, DoesNotFitWhereAGuestHasAGuestOrThereIsNoRoom) {
  Buffer small{carried_size - 1}, nested;
  nested.state().flags = KVM_STATE_NESTED_GUEST_MODE;
  EXPECT_FALSE(carry(some_state(), small.state()));
  EXPECT_FALSE(carry(some_state(), nested.state()));
}

TEST(CarriedState, SomethingElseIsNotTakenForIt) {
  Buffer empty, cut, intel;
  EXPECT_FALSE(carried(empty.state()));
  ASSERT_TRUE(carry(some_state(), cut.state()));
  cut.state().size = carried_size - 1;
  EXPECT_FALSE(carried(cut.state()));
  ASSERT_TRUE(carry(some_state(), intel.state()));
  intel.state().format = KVM_STATE_NESTED_FORMAT_VMX;
  EXPECT_FALSE(carried(intel.state()));
}

}  // namespace
}  // namespace vmm
