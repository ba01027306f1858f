#include "selftest/selftest.hpp"

#include <cpuid.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <span>

#include <fmt/format.h>

#include "kvm/fd.hpp"
#include "kvm/kick.hpp"
#include "perf/perf_calibration.hpp"
#include "pmu/registry.hpp"
#include "report.hpp"
#include "shared/output.hpp"
#include "sources/step_source.hpp"
#include "test_kernel.hpp"
#include "test_run.hpp"

// The test kernels' file: test_kernel_image.S.
extern "C" const std::byte vpmu_test_kernel[], vpmu_test_kernel_end[];

namespace vmm::tool {
namespace {

void print_line(const std::string& line) {
  print(line + "\n");
  std::fflush(stdout);  // the next test may take long
}

/// CPUID's brand string and signature.
std::string processor() {
  std::array<unsigned, 12> words{};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* const w = &words[std::size_t{leaf} * 4];
    if (__get_cpuid(0x80000002 + leaf, w, w + 1, w + 2, w + 3) == 0) return "an unknown processor";
  }
  std::array<char, sizeof words + 1> brand{};
  std::memcpy(brand.data(), words.data(), sizeof words);
  unsigned signature = 0;
  std::array<unsigned, 3> others{};
  __get_cpuid(1, &signature, others.data(), &others[1], &others[2]);
  return fmt::format("{} (CPUID {:#x})", brand.data(), signature);
}

/// The test kernels as a file without a name (a memfd).
Result<Fd> kernel_file() {
  Fd file{::memfd_create("vpmu-test-kernel", MFD_CLOEXEC)};
  if (!file.valid()) return host_error("memfd_create", errno);
  for (std::span rest{vpmu_test_kernel, vpmu_test_kernel_end}; !rest.empty();) {
    const ssize_t written = ::write(file.get(), rest.data(), rest.size());
    if (written <= 0) return host_error("writing the test kernels to memory", errno);
    rest = rest.subspan(static_cast<std::size_t>(written));
  }
  return file;
}

/// Why the source is not run here; empty if it is.
std::string not_run(const SourceRow& source, bool on_kvm) {
  if (source.traits.name == StepSource::description.name) return "too slow";
  if (!source.traits.needs_host_pmu) return {};
  if (!on_kvm) return "guests do not run on this host's processor";
  if (const auto handled = install_kick_handler(); !handled) return describe(handled.error());
  const auto found = calibrate(*make_linux_perf_host());
  return found ? std::string{} : describe(found.error());
}

/// Runs the tests with one source.
Result<gt_runner::Totals> run_tests(const gt_runner::TestKernel& kernel, const std::string& filter,
                                    const gt_runner::RunOptions& options) {
  std::vector<gt_runner::TestResult> results;
  for (const gt_runner::Test& test : kernel.tests()) {
    if (::fnmatch(filter.c_str(), test.name.c_str(), 0) != 0) continue;
    VMM_ASSIGN(gt_runner::TestResult result, gt_runner::run_test(kernel, test, options));
    if (result.verdict == gt_runner::Verdict::failed) print_line(gt_runner::describe(result));
    results.push_back(std::move(result));
  }
  if (results.empty())
    return usage_error(fmt::format("no test matches '{}'", printable(filter)),
                       "give a glob of test names with --filter");
  return gt_runner::count(results);
}

}  // namespace

Result<bool> run_selftest(const SelftestOptions& options) {
  utsname names{};
  ::uname(&names);
  print_line(fmt::format("vpmu " VPMU_VERSION ", Linux {}, {}", names.release, processor()));
  VMM_ASSIGN(const Fd file, kernel_file());
  VMM_ASSIGN(const gt_runner::TestKernel kernel,
             gt_runner::TestKernel::open(fmt::format("/proc/self/fd/{}", file.get())));
  gt_runner::Totals all;
  for (const SourceRow& source : all_sources()) {
    const std::string heading = fmt::format("model {}, source {}, {}", printable(options.model), source.traits.name,
                                            options.on_kvm ? "by KVM" : "by the engine");
    if (const std::string why = not_run(source, options.on_kvm); !why.empty()) {
      print_line(fmt::format("{}: not run: {}", heading, why));
      continue;
    }
    VMM_ASSIGN(const gt_runner::Totals totals, run_tests(kernel, options.filter,
                                                         {.model = options.model,
                                                          .source = std::string{source.traits.name},
                                                          .soft = !options.on_kvm,
                                                          .kvm_device = options.kvm_device}));
    print_line(fmt::format("{}: {}", heading, gt_runner::describe(totals)));
    all.passed += totals.passed;
    all.failed += totals.failed;
  }
  const bool good = all.failed == 0 && all.passed > 0;  // skipped tests alone say nothing
  print_line(good ? "selftest: passed" : "selftest: FAILED; send this report with a bug report");
  return good;
}

}  // namespace vmm::tool
