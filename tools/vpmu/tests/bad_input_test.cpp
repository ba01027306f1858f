#include <gtest/gtest.h>
#include <linux/kvm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "program.hpp"
#include "snapshot/snapshot_file.hpp"

// The program with input that cannot work: exit code 2 if the user can change that, 1 if the host lacks something; one
// line that says what failed, the value seen and what to do; no files left. Runs the real program.

namespace vmm::tool::test {
namespace {

namespace fs = std::filesystem;

using BadInput = Program;

TEST_F(BadInput, NoCommandAndUnknownOnes) {
  expect_failure(vpmu({}), 2,
                 {"vpmu: no command",
                  "exec, stat, compare, profile, test-kernel, report, run, ctl, virt, doctor, models, events, records",
                  "vpmu --help"});
  expect_failure(vpmu({"fly"}), 2, {"vpmu: no command fly; type `vpmu --help`"});
  expect_failure(vpmu({"exce", "--", "true"}), 2, {"no command exce; the nearest is exec"});
  expect_failure(vpmu({"exec", "--modle", "haswell", "--", "true"}), 2,
                 {"vpmu exec: no option --modle; the nearest is --model; type `vpmu exec --help`"});
  expect_failure(vpmu({"exec", "--model", "haswell", "ls", "-l"}), 2,
                 {"no option -l of vpmu exec", "put -- before that: vpmu exec --model haswell -- ls -l"});
  expect_failure(run({}), 2, {"--kernel", "--restore", "vpmu run --help"});
  expect_failure(run({"--kernel", kernel_, "--restore", kernel_}), 2, {"vpmu run --help"});
  expect_failure(run({"--accel", "kvm", "--restore", "/no/such/snapshot"}), 2, {"/no/such/snapshot", "--restore"});
  expect_failure(run({"--accel", "kvm", "--restore", kernel_}), 2,
                 {"does not begin as a snapshot does", "vpmu ctl SOCKET snapshot"});
  expect_failure(run({"--kernel", kernel_, "--warp"}), 2, {"--warp"});
}

TEST_F(BadInput, VersionTellsWhatABugReportNeeds) {
  const auto ended = vpmu({"--version"});
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_EQ(ended.errors, "");
  EXPECT_TRUE(ended.output.starts_with("vpmu 0.")) << ended.output;
  for (const char* part : {", commit ", "\nbuilt by ", "; Zydis 4.", "\nJIT: ", "\nKVM: "})
    EXPECT_NE(ended.output.find(part), std::string::npos) << part << " in: " << ended.output;
}

TEST_F(BadInput, KernelThatIsNotThere) {
  expect_failure(run({"--kernel", "/no/such/kernel"}), 2, {"kernel /no/such/kernel", "No such file", "--kernel"});
  expect_failure(run({"--kernel", "/"}), 2, {"kernel /", "not a regular file"});
  expect_failure(run({"--kernel", write("empty", "")}), 2, {"it is empty"});
}

TEST_F(BadInput, KernelThatIsCorruptOrTruncated) {
  expect_failure(run({"--kernel", write("text", std::string(4096, 'x'))}), 2, {"bad kernel", "0x7878", "bzImage"});
  expect_failure(run({"--kernel", write("short", "MZ")}), 2, {"bad kernel", "2 bytes are too short"});
  expect_failure(run({"--kernel", write("half", good_kernel().substr(0, 4000))}), 2, {"truncated", "5632", "4000"});
  expect_failure(run({"--kernel", write("elf",
                                        "\x7f"
                                        "ELF" +
                                            std::string(100, '\0'))}),
                 2, {"bad kernel", "ELF class 0"});
}

TEST_F(BadInput, AnElfKernelTakesNeitherInitrdNorCommandLine) {
  const std::string elf = VPMU_TEST_KERNEL;
  expect_failure(run({"--kernel", elf, "--initrd", kernel_}), 2,
                 {"neither an initial RAM disk nor a command line", "--initrd"});
  expect_failure(run({"--kernel", elf, "--append", "quiet"}), 2,
                 {"neither an initial RAM disk nor a command line", "--append"});
}

TEST_F(BadInput, InitrdThatIsMissingOrLargerThanMemory) {
  expect_failure(run({"--kernel", kernel_, "--initrd", "/no/such/initrd"}), 2, {"initrd /no/such/initrd", "--initrd"});
  const auto large = write("large", "");
  fs::resize_file(large, 64U << 20U);
  expect_failure(run({"--kernel", kernel_, "--initrd", large, "--memory", "32M"}), 2,
                 {"initrd of 64 MiB does not fit", "32 MiB", "--memory"});
}

TEST_F(BadInput, SizesAndNumbers) {
  expect_failure(run({"--kernel", kernel_, "--memory", "lots"}), 2, {"bad size \"lots\"", "--memory 512M"});
  expect_failure(run({"--kernel", kernel_, "--memory", "1K"}), 2, {"bad memory size of 1024 bytes", "16M"});
  expect_failure(run({"--kernel", kernel_, "--memory", "999G"}), 2, {"bad memory size"});
  expect_failure(run({"--kernel", kernel_, "--memory", "-1"}), 2, {"-1"});
  expect_failure(run({"--kernel", kernel_, "--cpus", "0"}), 2, {"bad number of CPUs 0", "1 to 64"});
  expect_failure(run({"--kernel", kernel_, "--cpus", "1000"}), 2, {"bad number of CPUs 1000"});
  expect_failure(run({"--kernel", kernel_, "--cpus", "two"}), 2, {"two"});
  expect_failure(run({"--kernel", kernel_, "--append", std::string(3000, 'a')}), 2, {"3000 characters", "--append"});
  for (const std::string epoch : {"-1", "253402300800", "9223372036854775807"})
    expect_failure(run({"--kernel", kernel_, "--accel", "soft", "--epoch", epoch}), 2,
                   {"bad time of day " + epoch, "--epoch"});
  for (const std::string schedule : {"", "0", "fair", "1000000001", "100:", "100:0", "100:x", "100,1", ":1", "100:1:2"})
    expect_failure(run({"--kernel", kernel_, "--accel", "soft", "--schedule", schedule}), 2,
                   {"bad schedule \"" + schedule + "\"", "50000:1"});
  expect_failure(run({"--kernel", kernel_, "--timeout", "soon"}), 2, {"soon"});
  expect_failure(run({"--kernel", kernel_, "--timeout", "-1"}), 2, {"--timeout"});
}

TEST_F(BadInput, UnknownNames) {
  expect_failure(run({"--kernel", kernel_, "--model", "p4"}), 2, {"unknown model \"p4\"", "skylake"});
  expect_failure(run({"--kernel", kernel_, "--source", "oracle"}), 2, {"unknown source \"oracle\"", "clock"});
  expect_failure(run({"--kernel", kernel_, "--model", "a\nb"}), 2, {"a?b"});
  expect_failure(run({"--kernel", kernel_, "--set", "l4=1M"}), 2, {"no parameter \"l4\"", "l1d, l2, l3", "--set"});
  expect_failure(run({"--kernel", kernel_, "--set", "l3=1000000M"}), 2, {"l3=1000000M", "64K to 128M"});
  expect_failure(run({"--kernel", kernel_, "--set", "l3=64K"}), 2, {"an L3 of 64K cannot hold the L2's 256K"});
  expect_failure(run({"--kernel", kernel_, "--set", "l3=16M", "--set", "l3=8M"}), 2, {"l3 is set twice"});
  expect_failure(run({"--kernel", kernel_, "--set", "l3=16M", "--source", "clock"}), 2,
                 {"source clock has no processor model", "--source exact with --set"});
  expect_failure(run({"--kernel", kernel_, "--accel", "warp"}), 2, {"unknown accelerator \"warp\"", "auto, kvm, soft"});
  expect_failure(run({"--kernel", kernel_, "--policy", "luck=good"}), 2, {"unknown policy \"luck\"", "pmu_time"});
  expect_failure(run({"--kernel", kernel_, "--policy", "pmu_time=maybe"}), 2,
                 {"pmu_time has no value \"maybe\"", "hidden|real"});
  expect_failure(run({"--kernel", kernel_, "--policy", "skid"}), 2, {"skid has no value"});
  expect_failure(run({"--kernel", kernel_, "--policy", "skid=1", "--policy", "skid=2"}), 2,
                 {R"(policy skid is given twice, as "1" and as "2")"});
  expect_failure(run({"--kernel", "/no/such", "--policy", "skid=1", "--policy", "skid=1"}), 2, {"/no/such"});
}

TEST_F(BadInput, KvmDeviceThatIsMissingOrForeign) {
  expect_failure(run({"--kernel", kernel_, "--accel", "kvm", "--kvm", "/dev/no-kvm"}), 1,
                 {"cannot open /dev/no-kvm", "No such file", "modprobe"});
  expect_failure(run({"--kernel", kernel_, "--accel", "kvm", "--kvm", "/dev/zero"}), 1,
                 {"/dev/zero is not the KVM device", "--kvm"});
}

// Its first instruction faults, and there is no handler yet.
TEST_F(BadInput, WithoutKvmTheEngineRunsTheGuestAndTheProgramSaysSo) {
  const auto kernel = kernel_of("\x0F\x0B");  // UD2
  const auto ended = run({"--kernel", kernel, "--kvm", "/dev/no-kvm"});
  EXPECT_EQ(ended.exit_code, 5) << ended.errors;
  EXPECT_EQ(std::ranges::count(ended.errors, '\n'), 2) << ended.errors;
  EXPECT_NE(ended.errors.find("processors by the instruction engine; KVM is not fit: /dev/no-kvm"), std::string::npos)
      << ended.errors;
  EXPECT_NE(ended.errors.find("source exact: the engine that runs the guest"), std::string::npos) << ended.errors;
  EXPECT_EQ(run({"--kernel", kernel, "--accel", "soft", "--source", "clock"}).errors, "") << "who asks for it knows";
}

TEST_F(BadInput, WithoutKvmNoMachineGoesOnThatRanThere) {
  const MachineImage image{
      .model = "skylake", .memory_bytes = 16U << 20U, .cpus = 1, .threads_per_core = 2, .vcpus = {Bytes{}}};
  const std::string path = directory_ / "saved";
  ASSERT_TRUE(write_snapshot(*new_snapshot_file(path), image, *GuestMemory::create(16U << 20U)));
  expect_failure(
      run({"--restore", path, "--kvm", "/dev/no-kvm"}), 1,
      {"the machine of " + path + " goes on on KVM only, and KVM is not fit: /dev/no-kvm: cannot open", "vpmu doctor"});
  expect_failure(run({"--restore", kernel_, "--kvm", "/dev/no-kvm"}), 2, {"does not begin as a snapshot does"});
}

TEST_F(BadInput, DoctorSaysWhatAMachineWillHaveThatLeavesItOpen) {
  const auto kernel = kernel_of("\x0F\x0B");  // UD2
  const auto doctor = vpmu({"doctor", "--kvm", "/dev/no-kvm", "--json"});
  const auto document = nlohmann::json::parse(doctor.output);
  std::map<std::string, std::string> of;
  for (const auto& finding : document["findings"]) of[finding["subject"]] = finding["finding"];
  const auto ended = run({"--kernel", kernel, "--kvm", "/dev/no-kvm"});
  EXPECT_EQ(ended.errors, "vpmu: " + of["accel auto"] + "\nvpmu: source " + of["source auto"] + "\n") << doctor.output;
  EXPECT_EQ(of["source auto"].find("exact:"), 0U) << of["source auto"];
}

/// Runs only where /dev/kvm is.
using KvmBadInput = BadInput;

TEST_F(KvmBadInput, MissingCapabilityIsNamed) {
  if (::access("/dev/kvm", R_OK | W_OK) != 0) {
    GTEST_SKIP() << "no usable /dev/kvm";
  }
  ::setenv("LD_PRELOAD", VPMU_WITHOUT_CAPABILITY, 1);
  ::setenv("WITHOUT_CAPABILITY", std::to_string(KVM_CAP_X86_MSR_FILTER).c_str(), 1);
  const auto ended = run({"--kernel", kernel_, "--accel", "kvm"});
  ::unsetenv("LD_PRELOAD");
  expect_failure(ended, 1, {"this KVM lacks KVM_CAP_X86_MSR_FILTER", "newer host kernel"});
}

TEST_F(BadInput, NoPermissionForTheKvmDevice) {
  constexpr uid_t nobody = 65534;
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can start the program as somebody else";
  }
  const auto device = write("kvm", "not for you");
  ::chmod(device.c_str(), 0600);
  const auto ended = vpmu({"run", "--kernel", kernel_, "--accel", "kvm", "--kvm", device}, nobody);
  expect_failure(ended, 1, {"cannot open " + device, "Permission denied", "run as root"});
}

TEST_F(BadInput, OutputsThatCannotBeWritten) {
  expect_failure(run({"--kernel", kernel_, "--stats", "/no/such/dir/stats"}), 2, {"/no/such/dir/stats", "--stats"});
  expect_failure(run({"--kernel", kernel_, "--console", "/no/such/dir/log"}), 2, {"/no/such/dir/log", "--console"});
}

TEST_F(BadInput, NobodyAtTheControlSocket) {
  expect_failure(vpmu({"ctl", "/no/such/socket", "status"}), 1, {"/no/such/socket", "vpmu run --control"});
  expect_failure(vpmu({"ctl", "x", "reboot"}), 2, {"reboot"});
  expect_failure(vpmu({"ctl", std::string(200, 's'), "status"}), 2, {"too long"});
  expect_failure(vpmu({"ctl", "x", "status", "extra"}), 2,
                 {"status takes no file, and \"extra\" was given", "snapshot FILE"});
  expect_failure(vpmu({"ctl", "x", "suspend"}), 2, {"suspend needs a file"});
  expect_failure(vpmu({"ctl", "x", "status", "--timeout", "never"}), 2, {"never"});
}

TEST_F(BadInput, DoctorSaysUnfitWithoutADevice) {
  const auto ended = vpmu({"doctor", "--kvm", "/dev/no-kvm"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.errors, "");
  EXPECT_NE(ended.output.find("unfit   /dev/no-kvm: cannot open"), std::string::npos) << ended.output;
  EXPECT_NE(ended.output.find("without KVM, which is not fit"), std::string::npos);
}

// What is usual: a cloud's machine, a container. Everything works there, by the engine.
TEST_F(BadInput, DoctorSaysFirstWhatWorksAndNeedsNoKvm) {
  const auto ended = vpmu({"doctor"});
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_TRUE(ended.output.starts_with("ok      accel auto: ")) << ended.output;
  EXPECT_NE(ended.output.find("\nfit: guests with a virtual PMU run on this host"), std::string::npos) << ended.output;
}

TEST_F(BadInput, DoctorSaysTheSameAsJson) {
  const auto ended = vpmu({"doctor", "--kvm", "/dev/no-kvm", "--json"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.errors, "");
  const auto document = nlohmann::json::parse(ended.output);
  EXPECT_EQ(document["fit"], true);
  EXPECT_EQ(document["kvm"], false);
  std::map<std::string, nlohmann::json> of;
  for (const auto& finding : document["findings"]) of[finding["subject"]] = finding;
  EXPECT_EQ(of["/dev/no-kvm"]["verdict"], "unfit");
  EXPECT_NE(of["/dev/no-kvm"]["finding"].get<std::string>().find("cannot open"), std::string::npos);
  EXPECT_EQ(of["source exact"]["verdict"], "ok");
  EXPECT_EQ(vpmu({"doctor", "--json", "--selftest"}).exit_code, 2);
}

TEST_F(BadInput, SelftestRunsTheGuestTestsBySourceAndReports) {
  const auto ended = vpmu({"doctor", "--kvm", "/dev/no-kvm", "--selftest", "--filter", "PebsO*"});
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  for (const char* line : {"vpmu 0.", "model skylake, source exact, by the engine: 16 passed, 0 failed",
                           "source perf, by the engine: not run: guests do not run",
                           "source step, by the engine: not run: too slow", "selftest: passed"})
    EXPECT_NE(ended.output.find(line), std::string::npos) << line << " in: " << ended.output;
  EXPECT_EQ(
      vpmu({"doctor", "--kvm", "/dev/no-kvm", "--selftest", "--filter", "EventClasses.CountFusedPairs"}).exit_code, 1)
      << "where no test could run nothing was shown";
  const auto no_test = vpmu({"doctor", "--kvm", "/dev/no-kvm", "--selftest", "--filter", "Luck.*"});
  EXPECT_EQ(no_test.exit_code, 2);
  EXPECT_NE(no_test.errors.find("no test matches 'Luck.*'"), std::string::npos) << no_test.errors;
  const auto no_model = vpmu({"doctor", "--kvm", "/dev/no-kvm", "--selftest", "--model", "p4"});
  EXPECT_EQ(no_model.exit_code, 2);
  EXPECT_NE(no_model.errors.find("unknown model \"p4\""), std::string::npos) << no_model.errors;
}

TEST_F(KvmBadInput, SelftestRunsOnKvm) {
  if (::access("/dev/kvm", R_OK | W_OK) != 0) {
    GTEST_SKIP() << "no usable /dev/kvm";
  }
  const auto ended = vpmu({"doctor", "--selftest", "--accel", "kvm", "--filter", "PebsO*"});
  EXPECT_EQ(ended.exit_code, 0) << ended.output << ended.errors;
  EXPECT_NE(ended.output.find("source exact, by KVM: 16 passed, 0 failed"), std::string::npos) << ended.output;
}

}  // namespace
}  // namespace vmm::tool::test
