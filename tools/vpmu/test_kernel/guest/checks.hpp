#pragma once
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
/// Sampled loads and stores, and what leaves the core.
void check_memory(const Processor& processor, Report& report);
/// FRONTEND_RETIRED.
void check_frontend(const Processor& processor, Report& report);
/// That the kernel complains of nothing; to be the last one.
void check_no_complaint(Report& report);

}  // namespace vmm::tool::checker
