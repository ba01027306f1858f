// `vpmu virt` as a program: exit codes and messages. The other virt_*_test.cpp test what it does.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "samples.hpp"

namespace vmm::tool::test {
namespace {

std::string run(const std::string& arguments) {
  std::FILE* const pipe = popen(("{ " VPMU_PROGRAM " virt " + arguments + "\n} 2>&1").c_str(), "r");
  if (pipe == nullptr) return "no shell";
  std::string text;
  std::array<char, 4096> buffer{};
  while (const auto got = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
  return text + "exit " + std::to_string(WEXITSTATUS(pclose(pipe)));
}

TEST(VirtCommand, HookReadsADomainFromStandardInputAndPassesOneOnThatHasNotAsked) {
  EXPECT_EQ(run("hook <<'E'\n<domain type='kvm'/>\nE"), "<domain type='kvm'/>\nexit 0");
  const auto changed =
      run("hook --model haswell --emulator /opt/qemu-vpmu <<'E'\n<domain "
          "type='kvm'><os><type>hvm</type></os><devices/></domain>\nE");
  EXPECT_TRUE(contains(changed, "<emulator>/opt/qemu-vpmu</emulator>")) << changed;
  EXPECT_TRUE(changed.ends_with("</domain>\nexit 0"));
}

TEST(VirtCommand, HookExplainsWhyADomainCannotHaveIt) {
  EXPECT_EQ(run("hook --model haswell --domain \"<domain type='qemu'/>\""),
            "vpmu virt hook: the domain is of type \"qemu\", not kvm; the PMU needs KVM: give a domain of type kvm, or "
            "boot the guest by `vpmu "
            "run`\nexit 2");
  EXPECT_TRUE(contains(run("hook --model haswell --domain '<a>'"), "vpmu virt hook: the XML is malformed at byte "));
  EXPECT_TRUE(contains(run("hook </dev/zero"), "vpmu virt hook: standard input has more than 16777216 bytes"));
}

TEST(VirtCommand, WrongUseIsExplained) {
  EXPECT_TRUE(contains(run(""), "vpmu virt: "));
  EXPECT_TRUE(run("").ends_with("exit 2"));
  EXPECT_TRUE(run("enable guest").ends_with("exit 2"));
  EXPECT_TRUE(contains(run("enable guest"), "--model is required"));
}

#ifdef VPMU_HAS_LIBVIRT

constexpr auto test_host = " --connect test:///default ";

TEST(VirtCommand, ListsTheDomainsOfAConnection) {
  EXPECT_EQ(run(std::string{"list"} + test_host),
            "DOMAIN                   PMU       MODEL            SOURCE\ntest                     -         -          "
            "      -\nexit 0");
  EXPECT_EQ(run(std::string{"status test"} + test_host), "test: not enabled\nexit 0");
}

TEST(VirtCommand, RefusalsAreOfTheUsersMakingAndLackOfLibvirtIsTheHosts) {
  EXPECT_TRUE(contains(run(std::string{"enable test --model haswell"} + test_host), "of type \"test\", not kvm"));
  EXPECT_TRUE(run(std::string{"enable test --model haswell"} + test_host).ends_with("exit 2"));
  EXPECT_EQ(run(std::string{"status nobody"} + test_host),
            "vpmu virt status: no domain \"nobody\" at test:///default; `vpmu virt list` shows them; another libvirt: "
            "--connect URI\nexit 2");
  EXPECT_TRUE(contains(run(std::string{"disable test"} + test_host), "test: the domain is not enabled"));
  EXPECT_TRUE(contains(run(std::string{"enable test --model haswell --emulator /no/qemu-vpmu"} + test_host),
                       "no qemu-vpmu with libvpmu-kvm.so beside it at /no/qemu-vpmu; give --emulator"));
  const auto nowhere = run("list --connect test:///no/such/host.xml");
  EXPECT_TRUE(contains(nowhere, "vpmu virt list: cannot connect to libvirt at test:///no/such/host.xml: ")) << nowhere;
  EXPECT_TRUE(nowhere.ends_with("exit 1"));
  EXPECT_EQ(std::ranges::count(nowhere, '\n'), 1) << "what libvirt's libraries say besides is not for the user:\n"
                                                  << nowhere;
}

TEST(VirtCommand, AConnectionWithoutAnAnswerIsTold) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "ASan stands in for libtirpc's functions, finds them at the start only, and libvirt is loaded later";
#endif
  const auto unheard = run("list --connect 'qemu+ext:///system?command=/no/such/helper'");
  EXPECT_TRUE(contains(unheard, "vpmu virt list: cannot connect to libvirt at qemu+ext:")) << unheard;
  EXPECT_TRUE(unheard.ends_with("exit 1")) << unheard;
}

TEST(VirtCommand, RunTakesAMachineFromADomainOrFromOptions) {
  const auto run_of = [](const std::string& arguments) {
    return run("--help >/dev/null; " VPMU_PROGRAM " run " + arguments);
  };
  EXPECT_TRUE(contains(run_of("--libvirt test --connect test:///default"),
                       "vpmu run: test: the domain is not of type hvm and architecture x86_64; "));
  EXPECT_TRUE(run_of("--libvirt test --connect test:///default").ends_with("exit 2"));
  EXPECT_TRUE(
      contains(run_of("--libvirt nobody --connect test:///default"), "no domain \"nobody\" at test:///default"));
  EXPECT_TRUE(contains(run_of("--libvirt test --kernel /boot/vmlinuz"),
                       "Exactly 1 option from [--kernel,--libvirt,--restore]"));
  EXPECT_TRUE(contains(run_of("--libvirt test --memory 1G"), "--memory excludes --libvirt"));
  EXPECT_TRUE(contains(run_of("--kernel /boot/vmlinuz --connect test:///default"), "--connect requires --libvirt"));
}

#else

TEST(VirtCommand, SaysThatItWasBuiltWithoutLibvirt) {
  EXPECT_EQ(run("list"),
            "vpmu virt list: vpmu was built without libvirt; install libvirt-dev and build again; `vpmu virt hook` "
            "works without\nexit 1");
}

#endif

}  // namespace
}  // namespace vmm::tool::test
