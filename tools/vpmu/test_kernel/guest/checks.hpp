#pragma once
#include <cstddef>
#include <string_view>

#include "test_kernel/guest/processor.hpp"
#include "test_kernel/guest/report.hpp"

namespace vmm::tool::checker {

/// What the kernel's log and sysfs say of the PMU.
void check_driver(const Processor& processor, Report& report);
/// Counts that are known.
void check_counting(const Processor& processor, Report& report);
/// Samples by a counter's overflow, precise ones, and their interrupts.
void check_sampling(const Processor& processor, Report& report);
/// The last branches of a sample, and all branches one by one.
void check_branches(const Processor& processor, Report& report);
/// Sampled loads and stores, what caches and TLBs lack, and what leaves the core.
void check_memory(const Processor& processor, Report& report);
/// FRONTEND_RETIRED.
void check_frontend(const Processor& processor, Report& report);
/// What perf, a program of this machine, makes of this kernel.
void check_perf(const Processor& processor, Report& report);
/// perf's own tests, those that a kernel can fail.
void check_perfs_tests(Report& report);
/// That the kernel has complained of nothing until now, but for so many NMIs of an unknown reason.
void check_no_complaint(std::string_view name, std::ptrdiff_t unknown_interrupts, Report& report);

}  // namespace vmm::tool::checker
