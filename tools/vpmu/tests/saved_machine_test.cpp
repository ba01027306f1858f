#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "control/session.hpp"
#include "program.hpp"

// Machines without KVM that are saved after a number of instructions, and restored. Runs the real program.

namespace vmm::tool::test {
namespace {

using namespace std::string_view_literals;

/// mov $0x3F8, %edx; out %al, (%dx); inc %eax; jmp to the OUT.
constexpr auto count_on_console = "\xBA\xF8\x03\x00\x00\xEE\xFF\xC0\xEB\xFB"sv;
/// mov $0x604, %edx; mov $0x3400, %eax; out %ax, (%dx): ACPI's power-off.
constexpr auto power_off = "\xBA\x04\x06\x00\x00\xB8\x00\x34\x00\x00\x66\xEF"sv;

class SavedMachine : public Program {
 protected:
  Ended start_and_save(const std::string& after, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{
        "run",     "--accel", "soft",   "--source", "clock", "--kernel", kernel_of(count_on_console),
        "--after", after,     "--save", image_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return vpmu(arguments);
  }
  Ended go_on(const std::vector<std::string>& more) {
    std::vector<std::string> arguments{"run", "--restore", image_, "--source", "clock"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return vpmu(arguments);
  }
  [[nodiscard]] std::vector<std::string> beside_image() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator{directory_})
      if (const std::string name = entry.path().filename(); name.starts_with("image")) names.push_back(name);
    return names;
  }

  std::string image_{directory_ / "image"};
};

TEST_F(SavedMachine, GoesOnAsItWouldHaveWithoutIt) {
  for (const std::string jail : {"--verbose", "--no-jail"}) {
    std::filesystem::remove(image_);
    const std::string whole = start_and_save("9000", {jail}).output;
    EXPECT_GT(whole.size(), 2000U);
    const Ended first = start_and_save("3001", {jail});
    EXPECT_EQ(first.exit_code, 6) << first.errors;
    EXPECT_EQ(beside_image(), std::vector<std::string>{"image"}) << "the file and nothing else";
    EXPECT_EQ(std::filesystem::status(image_).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
    const Ended second = go_on({"--after", "9000", jail});
    EXPECT_EQ(second.exit_code, 6) << second.errors;
    EXPECT_NE(second.errors.find("processors by the instruction engine, as it was saved"), std::string::npos)
        << second.errors;
    EXPECT_EQ(first.output + second.output, whole);
  }
}

TEST_F(SavedMachine, OfAGuestThatEndsBeforeThereIsNone) {
  const Ended ended =
      vpmu({"run", "--accel", "soft", "--kernel", kernel_of(power_off), "--after", "1000", "--save", image_});
  EXPECT_EQ(ended.exit_code, 0) << ended.errors;
  EXPECT_NE(
      ended.errors.find("the machine ended before a CPU had run 1000 instructions: " + image_ + " is not written"),
      std::string::npos)
      << ended.errors;
  EXPECT_TRUE(beside_image().empty());
}

// The run's other results are still reported.
TEST_F(SavedMachine, ThatCannotBeWrittenIsAFailureOfTheRun) {
  const Fd no_file{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  Log log;
  const auto end = run_session({.kernel = kernel_of(count_on_console), .accel = Accel::soft, .max_ticks = 1000},
                               {.console = directory_ / "console", .save_to = &no_file}, log);
  ASSERT_TRUE(end) << describe(end.error());
  ASSERT_TRUE(end->failure);
  EXPECT_NE(describe(*end->failure).find("it is a device"), std::string::npos) << describe(*end->failure);
  EXPECT_FALSE(end->saved);
  EXPECT_FALSE(end->statistics.vcpus.at(0).counters.empty());
  EXPECT_GT(read_file(directory_ / "console").size(), 200U);
}

TEST_F(SavedMachine, IsNotAskedForWhatCannotBe) {
  const std::string kernel = kernel_of(count_on_console);
  EXPECT_EQ(vpmu({"run", "--kernel", kernel, "--save", image_}).exit_code, 2) << "without --after";
  const Ended on_kvm = vpmu({"run", "--kernel", kernel, "--accel", "kvm", "--after", "10"});
  EXPECT_EQ(on_kvm.exit_code, 2);
  EXPECT_NE(on_kvm.errors.find("give --accel soft"), std::string::npos) << on_kvm.errors;
  const Ended nowhere =
      vpmu({"run", "--kernel", kernel, "--accel", "soft", "--after", "10", "--save", "/no/such/file"});
  EXPECT_EQ(nowhere.exit_code, 2);
  EXPECT_NE(nowhere.errors.find("the snapshot /no/such/file"), std::string::npos) << nowhere.errors;
  ASSERT_EQ(start_and_save("1000").exit_code, 6);
  const Ended elsewhere = go_on({"--accel", "kvm"});
  EXPECT_EQ(elsewhere.exit_code, 2);
  EXPECT_NE(elsewhere.errors.find("ran without KVM; give --accel soft"), std::string::npos) << elsewhere.errors;
  const Ended over_itself = go_on({"--after", "2000", "--save", image_});
  EXPECT_EQ(over_itself.exit_code, 2);
  EXPECT_NE(over_itself.errors.find("--save would overwrite"), std::string::npos) << over_itself.errors;
}

}  // namespace
}  // namespace vmm::tool::test
