#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// All of a file of the kernel's, without the newline at its end; empty where there is none.
std::string read_text(const std::string& path);
/// A file of the core PMU's directory in sysfs.
std::string core_pmu_path(std::string_view name);
bool exists(const std::string& path);
/// The lines of the kernel's log, without what stands before a line's text.
std::vector<std::string> kernel_log();
/// How many interrupts of the performance counters all CPUs have had.
unsigned long counter_interrupts();

}  // namespace vmm::tool::checker
