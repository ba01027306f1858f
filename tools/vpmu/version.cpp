#include "version.hpp"

#include <Zydis/Zydis.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <vector>

#include "exec/host/host_form.hpp"
#include "kvm/capabilities.hpp"
#include "kvm/system.hpp"
#include "memory/host_code.hpp"
#include "vpmu_commit.hpp"

namespace vmm::tool {
namespace {

/// Whether this host has what the instruction engine's compiled code needs.
std::string describe_jit() {
  using vpmu::exec::CpuFeature;
  std::vector<std::string> lacking;
  if (!vpmu::exec::host_has(CpuFeature::avx2)) lacking.emplace_back("AVX2");
  if (!vpmu::exec::host_has(CpuFeature::bmi2)) lacking.emplace_back("BMI2");
  MappedHostCode memory;
  constexpr std::array ret{std::byte{0xC3}};
  if (memory.add(ret) == nullptr) lacking.emplace_back("memory that it may execute");
  if (lacking.empty()) return "JIT: runs here";
  return fmt::format("JIT: does not run here, all code is interpreted: the host has no {}",
                     fmt::join(lacking, ", no "));
}

std::string describe_kvm(const std::string& device) {
  const auto system = System::open(device);
  if (!system) return "KVM: " + describe(system.error());
  std::vector<std::string> has, lacks;
  for (const CapabilityAnswer& answer : probe_capabilities(*system)) {
    if (answer.value == 0) {
      lacks.emplace_back(answer.row->name);
    } else {
      has.push_back(fmt::format("{}={}", answer.row->name, answer.value));
    }
  }
  return fmt::format("KVM: {}, API version 12\nKVM has: {}\nKVM lacks: {}", device, fmt::join(has, " "),
                     lacks.empty() ? "nothing that is asked for" : fmt::format("{}", fmt::join(lacks, " ")));
}

std::string describe_zydis() {
  const auto version = ZydisGetVersion();
  return fmt::format("{}.{}.{}", ZYDIS_VERSION_MAJOR(version), ZYDIS_VERSION_MINOR(version),
                     ZYDIS_VERSION_PATCH(version));
}

}  // namespace

std::string describe_version(const std::string& kvm_device) {
  return fmt::format("vpmu " VPMU_VERSION ", commit {}\nbuilt by " VPMU_COMPILER ", {}; Zydis {}\n{}\n{}\n", commit,
                     VPMU_BUILD_TYPE, describe_zydis(), describe_jit(), describe_kvm(kvm_device));
}

}  // namespace vmm::tool
