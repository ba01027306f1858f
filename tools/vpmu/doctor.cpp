#include "doctor.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>

#include <fmt/format.h>

#include "machine/host_check.hpp"
#include "sources/registry.hpp"

namespace vmm::tool {
namespace {

const char* word_for(Finding::Verdict verdict) {
  switch (verdict) {
    case Finding::Verdict::good: return "ok";
    case Finding::Verdict::limited: return "limited";
    case Finding::Verdict::unfit: return "unfit";
  }
  return "unfit";
}

int examine_and_print(const std::string& kvm_device) {
  const auto findings = examine_host(kvm_device);
  for (const auto& f : findings) {
    const auto advice = f.advice.empty() ? "" : "; " + f.advice;
    std::printf("%s\n", fmt::format("{:<8}{}: {}{}", word_for(f.verdict), f.subject, f.finding, advice).c_str());
  }
  for (const auto& source : all_sources()) {
    std::printf("%s\n", fmt::format("{:<8}source {}: {}", "ok", source.traits.name, source.summary).c_str());
  }
  const bool fit = is_fit(findings);
  std::printf("%s\n", fit ? "fit: guests with a virtual PMU run on this host"
                          : "not fit: see the lines marked unfit; the bed works everywhere: `tools/bed/run -- COMMAND`");
  return fit ? 0 : 1;
}

}  // namespace

void add_doctor(CLI::App& app, int& exit_code) {
  auto device = std::make_shared<std::string>("/dev/kvm");
  CLI::App* doctor = app.add_subcommand("doctor", "tell what this host can do, each line with its reason and advice");
  doctor->add_option("--kvm", *device, "the KVM device")->capture_default_str();
  doctor->footer("Exit codes: 0 this host is fit to run guests, 1 it is not.");
  doctor->callback([device, &exit_code] { exit_code = examine_and_print(*device); });
}

}  // namespace vmm::tool
