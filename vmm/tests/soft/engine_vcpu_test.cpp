// What a model that observes the engine is told of the TLBs while the back end has the vCPU.
#include "sources/engine_vcpu.hpp"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "soft/system_fixture.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm::test::engine_vcpu {
namespace {

class ToldFlushes final : public vpmu::Observer {
 public:
  void fetched(const vpmu::SeenCode& /*code*/) override {}
  void accessed(const vpmu::SeenAccess& /*access*/, std::uint64_t /*now*/) override {}
  void retired(bool /*load*/, bool /*store*/) override {}
  void branched(const vpmu::SeenBranch& /*branch*/) override {}
  void abandoned() override {}
  void flushed_line(const vpmu::SeenFlush& /*flush*/) override {}
  void flushed(const vpmu::TlbFlush& flush) override { told.push_back(flush); }
  std::vector<vpmu::TlbFlush> told;
};

class EngineVcpuInSoft : public SystemInstructions {
 protected:
  void follow() {
    guest_.store_code(code_at, X86("invlpg (%rsi); out %al, $0x80; invlpg (%rdi); mov %rbx, %cr4; out %al, $0x80"));
    guest_.backend.registers.rsi = first.linear;
    guest_.backend.registers.rdi = second.linear;
    guest_.backend.registers.rbx = guest_.backend.special.cr4 ^ x86::cr4::PGE::mask;
    SoftBackend& backend = begin();
    vcpu_.emplace(guest_.memory, vpmu::exec::Compiling{});
    vcpu_->follow(backend, engine_state(*backend.regs(), *backend.sregs(), backend.paging_limits()));
    vcpu_->tell_lost(model_);
  }
  /// The back end runs the code to its next OUT.
  void run_on() {
    const auto exit = backend_->run();
    ASSERT_TRUE(exit);
    ASSERT_TRUE(std::holds_alternative<PortWrite>(*exit)) << "exit " << exit->index();
  }
  void take() { vcpu_->take(*backend_, *backend_->regs(), *backend_->sregs()); }

  static constexpr vpmu::TlbFlush first{.of = vpmu::TlbFlush::Of::page, .pcid = 0, .linear = data_at},
      second{.of = vpmu::TlbFlush::Of::page, .pcid = 0, .linear = data_at + vpmu::page_size},
      all{.of = vpmu::TlbFlush::Of::everything}, in_use{.of = vpmu::TlbFlush::Of::nothing};
  std::optional<EngineVcpu> vcpu_;
  ToldFlushes model_;
};

// SDM 3A 4.10.4.1. A model may share paging-structure caches with another thread's, which runs before this vCPU is
// taken again: so it is told when the instruction runs, and once.
TEST_F(EngineVcpuInSoft, TheModelIsToldAtOnceWhetherItObservesOrNot) {
  follow();
  run_on();
  EXPECT_EQ(model_.told, std::vector{first});
  vcpu_->observe(&model_);
  EXPECT_EQ(model_.told, (std::vector{first, in_use}));
  take();
  ASSERT_TRUE(vcpu_->give_back());
  run_on();
  const std::vector with_control_register{first, in_use, second, all};
  EXPECT_EQ(model_.told, with_control_register);
  take();
  EXPECT_EQ(model_.told, with_control_register);
}

// Those who save a machine must not change what its model knows.
TEST_F(EngineVcpuInSoft, CatchingUpTellsNothingAnew) {
  follow();
  run_on();
  run_on();
  const std::vector told{first, second, all};
  EXPECT_EQ(model_.told, told);
  vcpu_->catch_up(engine_state(*backend_->regs(), *backend_->sregs(), backend_->paging_limits()));
  EXPECT_EQ(model_.told, told);
}

}  // namespace
}  // namespace vmm::test::engine_vcpu
