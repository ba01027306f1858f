#include "exec/guest_key.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

#include "files/input_file.hpp"
#include "kvm/system.hpp"
#include "processor/guest_features.hpp"
#include "snapshot/checksum.hpp"

namespace vmm::tool {
namespace {

// Extended topology, and its second version: SDM 2A table 3-8. Extended APIC ID: AMD's APM 3, appendix E.3.
constexpr std::uint32_t leaves_of_topology[] = {0xB, 0x1F, 0x8000'001E};

std::uint64_t sum_of(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

Result<std::uint64_t> sum_of_program() {
  VMM_ASSIGN(auto file, InputFile::open("/proc/self/exe", {.what = "this program", .advice = "mount /proc"}));
  Checksum sum;
  VMM_TRY(file.read_in_pieces([&sum](std::span<const std::byte> piece) { sum.add(piece); }));
  return sum.value();
}

/// Of the features that guests have of this host's CPU or, on KVM, of its KVM, whose kernel comes into it, too.
Result<std::uint64_t> sum_of_features(const MachineConfig& machine) {
  Checksum sum;
  CpuidTable features = supported_features();
  if (machine.accel == Accel::kvm) {
    VMM_ASSIGN(const System kvm, System::open(machine.kvm_device));
    VMM_ASSIGN(features, kvm.supported_cpuid());
    utsname kernel{};
    if (::uname(&kernel) != 0) return host_error("uname", errno);
    sum.add(std::as_bytes(std::span{kernel.release}));
    sum.add(std::as_bytes(std::span{kernel.version}));
  }
  for (kvm_cpuid_entry2 entry : features.entries()) {
    // KVM's have the numbers of the CPU that this thread runs on.
    if (entry.function == 1) entry.ebx = 0;
    if (std::ranges::find(leaves_of_topology, entry.function) != std::end(leaves_of_topology)) continue;
    sum.add(std::as_bytes(std::span{&entry, 1}));
  }
  return sum.value();
}

}  // namespace

Result<std::string> guest_key(const MachineConfig& machine, const KernelFile& kernel, const std::string& devices) {
  VMM_ASSIGN(const std::uint64_t program, sum_of_program());
  VMM_ASSIGN(const std::uint64_t host_features, sum_of_features(machine));
  // All members, so that a new one cannot be forgotten. Left out: paths, what begins after the boot, and what a
  // guest of `vpmu exec` does not have.
  const auto& [kernel_path, restore, initrd, initrd_content, command_line, memory_bytes, cpus, threads_per_core, model,
               bare_metal, source, source_options, events, accel, kvm_device, unknown_msr, tasks, pmu_time,
               pmu_policies, elf_arguments, epoch, max_ticks, schedule] = machine;
  const auto& [was_open, compiling, time, changes, model_log, instead] = source_options;
  const auto& [skid_events, load_tag_interval] = pmu_policies;
  const Schedule turns = schedule.value_or(Schedule{});
  const std::string all =
      fmt::format("{:x} {:x} {:x} {:x}\n{}\n{} {} {} {} {}\n{} {} {} {} {}\n{} {} {} {}\n{} {} {} {}\n{}\n", program,
                  kernel.checksum, sum_of(*initrd_content), host_features, command_line, memory_bytes, cpus,
                  threads_per_core, model, bare_metal, source, was_open, compiling.after, static_cast<int>(time),
                  changes.text(), static_cast<int>(accel), static_cast<int>(unknown_msr), static_cast<int>(pmu_time),
                  skid_events, load_tag_interval, epoch, turns.turn, turns.seed, devices);
  return fmt::format("{}-{}-{:016x}", model, kernel.version, sum_of(std::as_bytes(std::span{all})));
}

}  // namespace vmm::tool
