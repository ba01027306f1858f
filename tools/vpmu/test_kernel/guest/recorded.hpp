#pragma once
#include <functional>

#include "test_kernel/guest/event.hpp"
#include "test_kernel/guest/report.hpp"

namespace vmm::tool::checker {

/// A recording, or why there is none.
struct Recorded {
  Recording recording;
  std::string failure;  ///< Empty: there is one.
  int refused{};        ///< The kernel's error if it refuses to open the event.
};

/// Records an event while `run` runs; `run` gets the event's descriptor.
Recorded record(const perf_event_attr& attributes, const std::function<void(int event)>& run);

/// A sampling event with this period and sample type.
perf_event_attr sampled(perf_event_attr event, std::uint64_t period, unsigned precise, std::uint64_t sample_type);

/// Whether this error means that the kernel or the hardware lacks the feature.
bool says_unsupported(int error);

/// Judges samples one by one: returns what is wrong with a sample, or an empty string.
using Judge = std::function<std::string(const Sample& sample, std::size_t number)>;

/// Checks that there are as many samples as expected, and that each is right. `what`: what is expected of each.
void check_samples(Report& report, std::string_view name, const Recorded& recorded, std::size_t expected,
                   std::string_view what, const Judge& judge);

}  // namespace vmm::tool::checker
