#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "boot/image_file.hpp"
#include "fakes/fake_kvm.hpp"
#include "machine/machine.hpp"
#include "machine/probe_guest.hpp"
#include "passthrough/pass_through.hpp"

// Machines on a KVM that does not make RDPMC a #GP in the guest. No such kernel was at hand; the KVM here is a fake.

namespace vmm::test {
namespace {

/// A machine of one instruction on a fake KVM, whose RDPMC behaves as the parameter says.
class RdpmcProbe : public testing::TestWithParam<RdpmcBehaviour> {
 protected:
  RdpmcProbe() {
    kvm.other_capabilities = 1;
    kvm.vcpu_msrs = {{0x10, 0}, {0x8B, 0}, {0x2FF, 0}, {0x6E0, 0}, {0x345, 0}, {0x1A0, 0}};
    kvm.otherwise = [this](const FakeKvm::Vcpu& vcpu, kvm_run& run) {
      if (vcpu.regs.rip == ProbeGuest::code.value()) probed(vcpu, run);
    };
    const auto image = small_bzimage();
    std::ofstream{kernel_, std::ios::binary}.write(reinterpret_cast<const char*>(image.bytes().data()),
                                                   static_cast<std::streamsize>(image.bytes().size()));
    config.kernel = kernel_;
    config.memory_bytes = 32U << 20U;
    config.source = "clock";
    config.accel = Accel::kvm;
    config.kvm_device = kvm.path();
  }
  void TearDown() override { ::unlink(kernel_.c_str()); }

  Result<std::unique_ptr<Machine>> make() { return Machine::create(config, {}, log_); }

  FakeKvm kvm;
  MachineConfig config;
  int probes{};

 private:
  void probed(const FakeKvm::Vcpu& vcpu, kvm_run& run) {
    ++probes;
    const bool breaks = (vcpu.debug.control & KVM_GUESTDBG_USE_HW_BP) != 0;
    if (breaks && GetParam() == RdpmcBehaviour::trappable) {
      run.exit_reason = KVM_EXIT_DEBUG;
      return;
    }
    run.exit_reason = KVM_EXIT_IO;
    run.io = {.direction = KVM_EXIT_IO_OUT, .size = 1, .port = ProbeGuest::fault_port, .count = 1, .data_offset = 4096};
    if (GetParam() == RdpmcBehaviour::silent) run.io.port = ProbeGuest::done_port;
  }

  std::string kernel_{testing::TempDir() + "rdpmc_probe_" + std::to_string(::getpid())};
  Log log_;
};

TEST_P(RdpmcProbe, AMachineIsMadeWhereRdpmcComesToThePmuAlone) {
  const auto machine = make();
  if (GetParam() == RdpmcBehaviour::trappable) {
    ASSERT_TRUE(machine) << describe(machine.error());
    EXPECT_EQ(probes, 2);
    return;
  }
  ASSERT_FALSE(machine);
  EXPECT_EQ(machine.error().kind, ErrorKind::host);
  const std::string line = describe(machine.error());
  EXPECT_NE(line.find("RDPMC"), std::string::npos) << line;
  EXPECT_NE(line.find("--accel soft"), std::string::npos) << line;
  EXPECT_EQ(line.find("6.9") != std::string::npos, GetParam() == RdpmcBehaviour::silent) << line;
  EXPECT_GT(probes, 0);
}

std::string name_of_behaviour(const testing::TestParamInfo<RdpmcBehaviour>& tested) {
  constexpr std::array names{"trappable", "breakpoint_dead", "silent"};
  return names.at(static_cast<std::size_t>(tested.param));
}

INSTANTIATE_TEST_SUITE_P(All, RdpmcProbe,
                         testing::Values(RdpmcBehaviour::trappable, RdpmcBehaviour::breakpoint_dead,
                                         RdpmcBehaviour::silent),
                         name_of_behaviour);

}  // namespace
}  // namespace vmm::test
