#include "doctor.hpp"

#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "command_line.hpp"
#include "jail/identity.hpp"
#include "kvm/kick.hpp"
#include "machine/host_check.hpp"
#include "passthrough/pass_through.hpp"
#include "selftest.hpp"
#include "sources/perf_calibration.hpp"
#include "sources/registry.hpp"
#include "sources/source_choice.hpp"

namespace vmm::tool {
namespace {

constexpr int doctor_usage = 2;

const char* word_for(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::good: return "ok";
    case Finding::Verdict::limited: return "limited";
    case Finding::Verdict::unfit: return "unfit";
  }
  return "unfit";
}

/// What this host's counters are worth to the sources that need them.
Finding counters_of_host() {
  const auto host = make_linux_perf_host();
  if (auto handled = install_kick_handler(); !handled)
    return {Finding::Verdict::limited, {}, describe(handled.error()), {}};
  const auto found = calibrate(*host);
  if (found) return {found->lands ? Finding::Verdict::good : Finding::Verdict::limited, {}, describe(*found), {}};
  return {Finding::Verdict::limited, {}, describe(found.error()), {}};
}

/// What guests could have of KVM's own PMU.
Finding kvm_pmu_of_host(const std::string& kvm_device) {
  const auto system = System::open(kvm_device);
  if (!system) return {Finding::Verdict::limited, {}, describe(system.error()), {}};
  const auto pmu = examine_kvm_pmu(*system);
  const auto can = pmu ? describe(*pmu) : Failure{pmu.error()};
  if (!can) return {Finding::Verdict::limited, {}, describe(can.error()), {}};
  return {Finding::Verdict::good, {}, *can, {}};
}

void print_sources(const std::string& kvm_device) {
  const Finding counters = counters_of_host();
  for (const auto& source : all_sources()) {
    const bool by_host = source.traits.needs_host_pmu;
    std::printf("%s\n", fmt::format("{:<8}source {}: {}{}", by_host ? word_for(counters.verdict) : "ok",
                                    source.traits.name, source.summary, by_host ? ": " + counters.finding : "")
                            .c_str());
  }
  const Finding passed = kvm_pmu_of_host(kvm_device);
  std::printf("%s\n", fmt::format("{:<8}source {}: KVM's own PMU of the host's own model, not ours: {}",
                                  word_for(passed.verdict), pass_through_source, passed.finding)
                          .c_str());
  std::printf("%s\n", fmt::format("{:<8}source auto: {}", "ok", choose_source(true).why).c_str());
}

struct DoctorArguments {
  SelftestOptions selftest;  ///< Its device is looked at in any case.
  std::string accel{"auto"};
  bool runs_tests{};
};

/// Prints what this host can do; whether guests run on it.
bool print_host(const std::string& kvm_device) {
  const auto findings = examine_host(kvm_device);
  for (const auto& f : findings) {
    const auto advice = f.advice.empty() ? "" : "; " + f.advice;
    std::printf("%s\n", fmt::format("{:<8}{}: {}{}", word_for(f.verdict), f.subject, f.finding, advice).c_str());
  }
  print_sources(kvm_device);
  const bool fit = is_fit(findings);
  std::printf("%s\n",
              fit ? "fit: guests with a virtual PMU run on this host"
                  : "not fit: see the lines marked unfit; the bed works everywhere: `tools/bed/run -- COMMAND`");
  return fit;
}

int examine_and_print(DoctorArguments& arguments) {
  bool fit{};
  if (const auto done = as_jailed([&] { fit = print_host(arguments.selftest.kvm_device); }); !done)
    std::fprintf(stderr, "vpmu doctor: %s\n", describe(done.error()).c_str());
  if (!arguments.runs_tests) return fit ? 0 : 1;
  arguments.selftest.on_kvm = arguments.accel == "kvm" || (arguments.accel == "auto" && fit);
  const auto passed = run_selftest(arguments.selftest);
  if (!passed) std::fprintf(stderr, "vpmu doctor: %s\n", describe(passed.error()).c_str());
  if (!passed && passed.error().kind == ErrorKind::usage) return doctor_usage;
  return passed.value_or(false) ? 0 : 1;
}

}  // namespace

void add_doctor(Command& app, int& exit_code) {
  auto arguments = std::make_shared<DoctorArguments>();
  Command doctor = app.add_command("doctor", "tell what this host can do, each line with its reason and advice");
  auto& selftest = arguments->selftest;
  doctor.add_option("--kvm", selftest.kvm_device, "the KVM device").shows_default();
  const Argument runs =
      doctor.add_flag("--selftest", arguments->runs_tests,
                      "then run the guest tests here, on KVM where it is fit, and print a report to send");
  doctor.add_option("--accel", arguments->accel, "what runs the guests of the selftest: kvm, soft, auto")
      .shows_default()
      .one_of({"auto", "kvm", "soft"})
      .needs(runs);
  doctor.add_option("--model", selftest.model, "of the guests of the selftest").shows_default().needs(runs);
  doctor.add_option("--filter", selftest.filter, "run only tests whose name matches this glob")
      .shows_default()
      .needs(runs);
  doctor.set_footer(
      "Exit codes: 0 this host is fit to run guests, or the selftest passed; 1 it is not, or a test failed; 2 wrong "
      "use.");
  doctor.when_given([arguments, &exit_code] { exit_code = examine_and_print(*arguments); });
}

}  // namespace vmm::tool
