#pragma once
#include <cstddef>
#include <string_view>

#include "test_kernel/guest/processor.hpp"
#include "test_kernel/guest/report.hpp"

namespace vmm::tool::checker {

/// What the kernel's log and sysfs report about the PMU.
void check_driver(const Processor& processor, Report& report);
/// Counts of code with a known result.
void check_counting(const Processor& processor, Report& report);
/// Samples at counter overflows, precise samples, and the interrupts for them.
void check_sampling(const Processor& processor, Report& report);
/// The last branches before each sample, and all branches one by one (BTS).
void check_branches(const Processor& processor, Report& report);
/// Sampled loads and stores, cache and TLB misses, and off-core requests.
void check_memory(const Processor& processor, Report& report);
/// FRONTEND_RETIRED.
void check_frontend(const Processor& processor, Report& report);
/// perf, the program of this machine, run on this kernel.
void check_perf(const Processor& processor, Report& report);
/// perf's own tests, those that a kernel can fail.
void check_perfs_tests(Report& report);
/// That the kernel has logged no complaint so far, except at most so many NMIs of unknown reason.
void check_no_complaint(std::string_view name, std::ptrdiff_t unknown_interrupts, Report& report);

}  // namespace vmm::tool::checker
