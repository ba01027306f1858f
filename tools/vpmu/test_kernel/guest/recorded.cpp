#include "test_kernel/guest/recorded.hpp"

#include <cerrno>

namespace vmm::tool::checker {

Recorded record(const perf_event_attr& attributes, const std::function<void(int event)>& run) {
  const OpenedEvent event = open_event(attributes);
  if (event.is_refused()) return {.recording = {}, .failure = refusal(event.error), .refused = event.error};
  const SampleBuffer buffer{event};
  if (buffer.error() != 0) return {.recording = {}, .failure = "no buffer, " + refusal(buffer.error())};
  run(event.fd.get());
  Recorded recorded{.recording = buffer.take(attributes.sample_type), .failure = {}};
  if (recorded.recording.lost > 0) recorded.failure = "the kernel has dropped samples";
  return recorded;
}

perf_event_attr sampled(perf_event_attr event, std::uint64_t period, unsigned precise, std::uint64_t sample_type) {
  event.sample_period = period;
  event.precise_ip = precise & 3U;
  event.sample_type = sample_type;
  return event;
}

bool says_unsupported(int error) { return error == EOPNOTSUPP || error == ENOENT || error == EINVAL; }

void check_samples(Report& report, std::string_view name, const Recorded& recorded, std::size_t expected,
                   std::string_view what, const Judge& judge) {
  const std::string wanted = decimal(expected) + " samples, " + std::string{what};
  if (!recorded.failure.empty()) return report.check(name, false, wanted, recorded.failure);
  const auto& samples = recorded.recording.samples;
  std::string seen = samples.empty() ? "none" : decimal(samples.size()) + " samples, " + std::string{what};
  bool right = samples.size() == expected && expected > 0;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::string wrong = judge(samples[i], i);
    if (wrong.empty()) continue;
    right = false;
    seen = decimal(samples.size()) + " samples, number " + decimal(i + 1) + ": " + wrong;
    break;
  }
  report.check(name, right, wanted, seen);
}

}  // namespace vmm::tool::checker
