#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// All of a file in procfs or sysfs, without the newline at its end; empty if there is none.
std::string read_text(const std::string& path);
/// The path of a file in the core PMU's directory in sysfs.
std::string core_pmu_path(std::string_view name);
bool exists(const std::string& path);
/// The lines of the kernel's log, without the prefixes of their text.
std::vector<std::string> kernel_log();
/// The number of performance counter interrupts on all CPUs.
unsigned long counter_interrupts();

}  // namespace vmm::tool::checker
