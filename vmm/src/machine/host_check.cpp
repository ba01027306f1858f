#include "machine/host_check.hpp"

#include <fcntl.h>
#include <linux/perf_event.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include <fmt/format.h>

#include "kvm/capabilities.hpp"
#include "kvm/system.hpp"

namespace vmm {
namespace {

using Verdict = Finding::Verdict;

constexpr auto use_the_bed = "run guests in the bed: `tools/dev/bed/run -- COMMAND`";

Finding kernel_modules() {
  utsname names{};
  ::uname(&names);
  std::string module = "none of kvm_intel and kvm_amd";
  for (const auto* name : {"kvm_intel", "kvm_amd"}) {
    if (::access(fmt::format("/sys/module/{}", name).c_str(), F_OK) == 0) {
      module = name;
    }
  }
  return {Verdict::good, "host", fmt::format("Linux {}, {} loaded", names.release, module), ""};
}

Finding capability(const CapabilityAnswer& answer) {
  const auto use = std::string{answer.row->use};
  const auto subject = std::string{answer.row->name};
  if (answer.value != 0) {
    return {Verdict::good, subject, fmt::format("{}, {}", answer.value, use), ""};
  }
  if (answer.row->need == Need::optional) {
    return {Verdict::limited, subject, "absent, " + use, "guests run without it; a newer host kernel may have it"};
  }
  return {Verdict::unfit, subject, "absent, " + use, std::string{"use a newer host kernel, or "} + use_the_bed};
}

Finding rdpmc(const System& system) {
  const std::string subject = "RDPMC";
  // A guest that signals interrupt says nothing, and is run again.
  auto behaviour = probe_rdpmc(system);
  for (unsigned n = 1; !behaviour && n < max_measurements; ++n) behaviour = probe_rdpmc(system);
  if (!behaviour) {
    return {Verdict::unfit, subject, describe(behaviour.error()), use_the_bed};
  }
  switch (*behaviour) {
    case RdpmcBehaviour::trappable:
      return {Verdict::good, subject, "faults, and a hardware breakpoint on the #GP handler catches it", ""};
    case RdpmcBehaviour::breakpoint_dead:
      return {Verdict::unfit, subject, "faults, but a hardware breakpoint on the #GP handler never fires",
              std::string{"guests cannot read counters here; "} + use_the_bed};
    case RdpmcBehaviour::silent:
      return {Verdict::unfit, subject, "does not fault: this KVM answers it with 0",
              std::string{"use Linux 6.9 or later on an AMD host, 5.18 or later on an Intel one, or "} + use_the_bed};
  }
  return {Verdict::unfit, subject, "unknown", use_the_bed};
}

Finding perf_event(const std::string& subject, std::uint32_t type, std::uint64_t config, const std::string& advice) {
  perf_event_attr attributes{};
  attributes.type = type;
  attributes.size = sizeof attributes;
  attributes.config = config;
  attributes.disabled = 1;
  const Fd event{static_cast<int>(::syscall(SYS_perf_event_open, &attributes, 0, -1, -1, PERF_FLAG_FD_CLOEXEC))};
  if (event.valid()) {
    return {Verdict::good, subject, "perf_event_open works", ""};
  }
  return {Verdict::limited, subject, "perf_event_open: " + errno_text(errno), advice};
}

}  // namespace

Finding judge_speed(const std::function<Result<SpeedComparison>()>& measure) {
  constexpr double million = 1e6;
  constexpr double slowest_share = 0.125;
  const std::string subject = "ring-0 speed";
  std::optional<SpeedComparison> best;
  std::string failure;
  for (unsigned n = 0; n < max_measurements; ++n) {
    const auto speed = measure();
    if (!speed) {
      failure = describe(speed.error());
      continue;
    }
    if (!best || speed->guest / speed->host > best->guest / best->host) best = *speed;
    if (best->guest >= best->host * slowest_share) break;
  }
  if (!best) return {Verdict::unfit, subject, failure, use_the_bed};
  const auto text = fmt::format("guest {:.1f}, host {:.1f} million instructions per second", best->guest / million,
                                best->host / million);
  if (best->guest >= best->host * slowest_share) return {Verdict::good, subject, text, ""};
  return {Verdict::unfit, subject,
          fmt::format("{}, the best of {} measurements: this KVM emulates ring-0 code", text, max_measurements),
          use_the_bed};
}

std::vector<Finding> examine_host(const std::string& kvm_device) {
  std::vector<Finding> findings{kernel_modules()};
  const auto system = System::open(kvm_device);
  if (!system) {
    const auto& error = system.error();
    findings.push_back({Verdict::unfit, kvm_device,
                        error.what + (error.system_errno != 0 ? ": " + errno_text(error.system_errno) : ""),
                        error.advice});
    return findings;
  }
  findings.push_back({Verdict::good, kvm_device, "opens, KVM API version 12", ""});
  for (const auto& answer : probe_capabilities(*system)) {
    findings.push_back(capability(answer));
  }
  findings.push_back(judge_speed([&system] { return compare_speed(*system); }));
  findings.push_back(rdpmc(*system));
  findings.push_back(
      perf_event("perf cpu-clock", PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK,
                 "a POSIX timer serves instead; for perf set kernel.perf_event_paranoid to 1 or give CAP_PERFMON"));
  return findings;
}

Finding examine_host_pmu() {
  return perf_event("host PMU", PERF_TYPE_HARDWARE, PERF_COUNT_HW_CPU_CYCLES,
                    "not needed: --source clock counts without it");
}

bool is_fit(const std::vector<Finding>& findings) {
  return std::ranges::none_of(findings, [](const Finding& f) { return f.verdict == Verdict::unfit; });
}

}  // namespace vmm
