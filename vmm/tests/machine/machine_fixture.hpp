#pragma once
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fakes/code_file.hpp"
#include "machine/machine.hpp"

namespace vmm::test {

inline constexpr std::uint64_t mib = 1ULL << 20U;

/// Machines that run a few instructions; `console` collects what they write to COM1.
class MachineTest : public testing::Test {
 protected:
  explicit MachineTest(Accel accel) : accel_{accel} {}

  std::unique_ptr<Machine> machine_with(const std::vector<std::uint8_t>& code, unsigned cpus = 1,
                                        const std::string& source = "auto") {
    const CodeFile file{code};
    auto machine = Machine::create(
        {.kernel = file.path(), .memory_bytes = 16 * mib, .cpus = cpus, .source = source, .accel = accel_},
        {.console = [this](std::uint8_t byte) { add_letter(byte); }, .stop_requested = [this] { ++stops; }}, log);
    EXPECT_TRUE(machine) << describe(machine.error());
    return machine ? std::move(*machine) : nullptr;
  }

  StopReason run(const std::vector<std::uint8_t>& code, unsigned cpus = 1) {
    const auto machine = machine_with(code, cpus);
    machine->start();
    const auto reason = machine->wait();
    EXPECT_FALSE(machine->failure()) << describe(*machine->failure());
    return reason;
  }

  void add_letter(std::uint8_t byte) {
    const std::scoped_lock lock{mutex_};
    console += static_cast<char>(byte);
  }
  std::size_t letters() {
    const std::scoped_lock lock{mutex_};
    return console.size();
  }

  [[nodiscard]] Accel accel() const { return accel_; }

  Log log;
  std::string console;
  int stops{0};

 private:
  std::mutex mutex_;
  Accel accel_;
};

}  // namespace vmm::test
