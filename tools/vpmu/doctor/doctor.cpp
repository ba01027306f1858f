#include "doctor/doctor.hpp"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "command_line.hpp"
#include "jail/identity.hpp"
#include "kvm/kick.hpp"
#include "machine/automatic.hpp"
#include "machine/host_check.hpp"
#include "passthrough/pass_through.hpp"
#include "perf/perf_calibration.hpp"
#include "pmu/registry.hpp"
#include "selftest/selftest.hpp"
#include "shared/output.hpp"
#include "tables/models.hpp"

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

/// How well this host's counters serve the sources that need them.
Finding counters_of_host() {
  const auto host = make_linux_perf_host();
  if (auto handled = install_kick_handler(); !handled)
    return {Finding::Verdict::limited, {}, describe(handled.error()), {}};
  const auto found = calibrate(*host);
  if (found) return {found->lands ? Finding::Verdict::good : Finding::Verdict::limited, {}, describe(*found), {}};
  return {Finding::Verdict::limited, {}, describe(found.error()), {}};
}

/// What KVM's own PMU offers to guests here.
Finding kvm_pmu_of_host(const std::string& kvm_device) {
  const auto system = System::open(kvm_device);
  if (!system) return {Finding::Verdict::limited, {}, describe(system.error()), {}};
  const auto pmu = examine_kvm_pmu(*system);
  const auto can = pmu ? describe(*pmu) : Failure{pmu.error()};
  if (!can) return {Finding::Verdict::limited, {}, describe(can.error()), {}};
  return {Finding::Verdict::good, {}, *can, {}};
}

/// How well each source works here.
std::vector<Finding> examine_sources(const std::string& kvm_device) {
  std::vector<Finding> sources;
  const Finding counters = counters_of_host();
  for (const auto& source : all_sources()) {
    const bool by_host = source.traits.needs_host_pmu;
    sources.push_back({.verdict = by_host ? counters.verdict : Finding::Verdict::good,
                       .subject = fmt::format("source {}", source.traits.name),
                       .finding = fmt::format("{}{}", source.summary, by_host ? ": " + counters.finding : ""),
                       .advice = {}});
  }
  const Finding passed = kvm_pmu_of_host(kvm_device);
  sources.push_back({.verdict = passed.verdict,
                     .subject = fmt::format("source {}", pass_through_source),
                     .finding = "KVM's own PMU of the host's own model, not ours: " + passed.finding,
                     .advice = {}});
  return sources;
}

/// Settles `machine` by the findings on this host, and returns the choices with their reasons.
std::vector<Finding> choose_for(MachineConfig& machine, const std::vector<Finding>& found) {
  const HostQuestions known{.examine = [&found](const std::string&) { return found; }};
  const auto chosen = choose_automatic(machine, known);
  if (!chosen) return {{Finding::Verdict::limited, "auto", describe(chosen.error()), {}}};
  std::vector<Finding> choices;
  if (!chosen->accel.empty()) choices.push_back({Finding::Verdict::good, "accel auto", chosen->accel, {}});
  choices.push_back({Finding::Verdict::good, "source auto", chosen->source, {}});
  return choices;
}

/// Whether guests run on this host, and on its KVM.
struct Fitness {
  bool runs_guests{}, on_kvm{};
};

std::string_view conclude(const Fitness& fitness) {
  if (fitness.on_kvm) return "fit: guests with a virtual PMU run on this host's KVM";
  if (fitness.runs_guests)
    return "fit: guests with a virtual PMU run on this host without KVM, which is not fit: see the lines marked unfit; "
           "tests that need KVM run in the bed: `tools/dev/bed/run -- COMMAND`";
  return "not fit: see the lines marked unfit; the bed works everywhere: `tools/dev/bed/run -- COMMAND`";
}

std::string as_lines(const std::vector<Finding>& findings, const Fitness& fitness) {
  std::string text;
  for (const auto& f : findings)
    text += fmt::format("{:<8}{}: {}{}{}\n", word_for(f.verdict), f.subject, f.finding, f.advice.empty() ? "" : "; ",
                        f.advice);
  return fmt::format("{}{}\n", text, conclude(fitness));
}

std::string as_json(const std::vector<Finding>& findings, const Fitness& fitness) {
  auto lines = nlohmann::ordered_json::array();
  for (const auto& f : findings)
    lines.push_back(
        {{"verdict", word_for(f.verdict)}, {"subject", f.subject}, {"finding", f.finding}, {"advice", f.advice}});
  const nlohmann::ordered_json document = {
      {"fit", fitness.runs_guests}, {"kvm", fitness.on_kvm}, {"findings", std::move(lines)}};
  // What a host reports about itself need not be UTF-8.
  return document.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

struct DoctorArguments {
  std::optional<std::string> kvm;  ///< Empty text: the usual device.
  SelftestOptions selftest;        ///< Its KVM device is examined even without the selftest.
  std::string accel{"auto"};
  bool runs_tests{}, as_json{};
};

/// Prints what this host can do, first what `machine` would get here.
Fitness print_host(const DoctorArguments& arguments, MachineConfig& machine) {
  const std::string& kvm_device = arguments.selftest.kvm_device;
  // With the rights that a jailed machine keeps; its broker opens the host's counters with those of this process.
  std::vector<Finding> of_host;
  if (const auto done = as_jailed([&] { of_host = examine_host(kvm_device); }); !done)
    std::fprintf(stderr, "vpmu doctor: %s\n", describe(done.error()).c_str());
  of_host.push_back(examine_host_pmu());
  std::vector<Finding> findings = choose_for(machine, of_host);
  const Fitness fitness{.runs_guests = findings.front().verdict == Finding::Verdict::good, .on_kvm = is_fit(of_host)};
  std::ranges::move(of_host, std::back_inserter(findings));
  std::ranges::move(examine_sources(kvm_device), std::back_inserter(findings));
  print(arguments.as_json ? as_json(findings, fitness) : as_lines(findings, fitness));
  return fitness;
}

int examine_and_print(DoctorArguments& arguments) {
  MachineConfig machine{.kernel = "", .accel = parse_accel(arguments.accel).value_or(Accel::automatic)};
  if (arguments.kvm && !arguments.kvm->empty()) arguments.selftest.kvm_device = *arguments.kvm;
  const Fitness fitness = print_host(arguments, machine);
  if (!arguments.runs_tests) return (arguments.kvm ? fitness.on_kvm : fitness.runs_guests) ? 0 : 1;
  arguments.selftest.on_kvm = machine.accel == Accel::kvm;
  const auto passed = run_selftest(arguments.selftest);
  if (!passed) std::fprintf(stderr, "vpmu doctor: %s\n", describe(passed.error()).c_str());
  if (!passed && passed.error().kind == ErrorKind::usage) return doctor_usage;
  return passed.value_or(false) ? 0 : 1;
}

}  // namespace

void add_doctor(Command& app, int& exit_code) {
  auto arguments = std::make_shared<DoctorArguments>();
  Command doctor = app.add_command("doctor", "print what this host can do, each line with its reason and advice");
  auto& selftest = arguments->selftest;
  doctor.add_option("--kvm", arguments->kvm, "end with 1 if guests do not run on KVM; FILE: its device")
      .takes_file()
      .value_may_be_missing();
  const Argument runs =
      doctor.add_flag("--selftest", arguments->runs_tests,
                      "also run the guest tests here, on KVM if it is fit, and print a report to send");
  doctor.add_flag("--json", arguments->as_json, "print it as JSON").excludes(runs);
  doctor.add_option("--accel", arguments->accel, "what runs the guests of the selftest: kvm, soft, auto")
      .shows_default()
      .one_of({"auto", "kvm", "soft"})
      .needs(runs);
  doctor.add_option("--model", selftest.model, "CPU model of the selftest's guests")
      .shows_default()
      .needs(runs)
      .suggests(model_names());
  doctor.add_option("--filter", selftest.filter, "run only tests whose name matches this glob")
      .shows_default()
      .needs(runs);
  doctor.set_exit_codes({{.code = "0", .meaning = "guests run on this host, or the selftest passed"},
                         {.code = "1", .meaning = "they do not, with --kvm: not on KVM; or a test failed"},
                         {.code = "2", .meaning = "wrong use"}});
  doctor.add_example("vpmu doctor", "what this host can do, with advice");
  doctor.add_example("vpmu doctor --selftest", "the same, the guest tests, and a report to send");
  doctor.when_given([arguments, &exit_code] { exit_code = examine_and_print(*arguments); });
}

}  // namespace vmm::tool
