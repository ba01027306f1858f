#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attach/attachment.hpp"
#include "fakes/fake_kvm.hpp"

namespace vmm::test {

constexpr std::uint32_t pmc0 = 0xC1, perfevtsel0 = 0x186;
constexpr std::uint64_t kernel_instructions = 0x4200C0;

/// The counters of vCPU `id`, or of the last one, in a line of statistics; empty if the line has no such vCPU.
std::map<std::string, std::uint64_t> vcpu_counters(const std::string& line, std::optional<unsigned> id);

/// An exit for an access to an I/O port.
inline void at_a_device(kvm_run& run) { run.exit_reason = KVM_EXIT_IO; }

/// The library attached to a fake KVM, and the calls of a VMM that knows nothing of the library.
class AttachmentTest : public testing::Test {
 protected:
  int call(int fd, unsigned long request, std::uintptr_t argument = 0) {
    return attachment.call(fd, request, argument);
  }
  template <class T>
  int call_with(int fd, unsigned long request, T& argument) {
    return attachment.call(fd, request, reinterpret_cast<std::uintptr_t>(&argument));
  }
  void close_both(int fd) {
    attachment.closing(fd);
    ::close(fd);
  }
  int make_vm() { return call(kvm.system(), KVM_CREATE_VM); }
  int make_vcpu(int vm, unsigned id = 0) { return call(vm, KVM_CREATE_VCPU, id); }
  /// Runs the vCPU to the first exit that reaches the VMM, which must be a halt.
  void run_to_halt(int vcpu) {
    ASSERT_EQ(call(vcpu, KVM_RUN), 0);
    EXPECT_EQ(FakeKvm::run_page(vcpu).exit_reason, std::uint32_t{KVM_EXIT_HLT});
  }
  /// Makes KVM_RUN return at once with EINTR, because only then are a vCPU's counters published. Returns those of vCPU
  /// `id`, or of the VM's last vCPU.
  std::map<std::string, std::uint64_t> counters_of(int vm_line, int vcpu, std::optional<unsigned> id = std::nullopt) {
    FakeKvm::ask_to_come_out(vcpu);
    EXPECT_EQ(call(vcpu, KVM_RUN), -1);
    EXPECT_EQ(errno, EINTR);
    return counters_in(vm_line, id);
  }
  std::map<std::string, std::uint64_t> counters_in(int line_number, std::optional<unsigned> id = std::nullopt) {
    attachment.write_statistics();
    std::ifstream file{statistics};
    std::string line;
    for (int n = 0; n <= line_number; ++n) std::getline(file, line);
    return vcpu_counters(line, id);
  }
  [[nodiscard]] int lines_of_statistics() {
    attachment.write_statistics();
    std::ifstream file{statistics};
    int lines = 0;
    for (std::string line; std::getline(file, line);) ++lines;
    return lines;
  }
  void TearDown() override { std::filesystem::remove(statistics); }

  FakeKvm kvm;
  std::vector<std::string> warnings;
  Log log{[this](LogLevel, std::string_view line) { warnings.emplace_back(line); }, LogLevel::warning};
  std::string statistics{std::filesystem::temp_directory_path() / ("vpmu-attach-stats-" + std::to_string(::getpid()))};
  Result<RdpmcBehaviour> rdpmc{RdpmcBehaviour::trappable};
  int probed{};
  Attachment attachment{
      {.model = find_machine_model("haswell"), .source = "clock"}, statistics, log, [this](const System&) {
        ++probed;
        return rdpmc;
      }};
};

}  // namespace vmm::test
