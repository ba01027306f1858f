#pragma once
#include <functional>

#include "test_kernel/guest/event.hpp"
#include "test_kernel/guest/report.hpp"

namespace vmm::tool::checker {

/// A recording, or why there is none.
struct Recorded {
  Recording recording;
  std::string failure;  ///< Empty: there is one.
  int refused{};        ///< The kernel's error where it does not open the event.
};

/// Records an event while `run` runs with its descriptor.
Recorded record(const perf_event_attr& attributes, const std::function<void(int event)>& run);

/// An event of a period, and what is recorded of it.
perf_event_attr sampled(perf_event_attr event, std::uint64_t period, unsigned precise, std::uint64_t sample_type);

/// Whether the kernel says that it has no such thing.
bool says_unsupported(int error);

/// Judges samples one by one: what is wrong of the first that is, or empty.
using Judge = std::function<std::string(const Sample& sample, std::size_t number)>;

/// There are so many samples as expected, and nothing is wrong with any. `what`: what is expected of each.
void check_samples(Report& report, std::string_view name, const Recorded& recorded, std::size_t expected,
                   std::string_view what, const Judge& judge);

}  // namespace vmm::tool::checker
