#pragma once
#include <optional>
#include <string>

#include "files/output_file.hpp"
#include "support/result.hpp"
#include "test_kernel/results.hpp"

namespace vmm::tool {

class Command;

/// How a report is written, and what it is compared with.
struct DeliveryOptions {
  std::string format{"table"}, output, baseline;
};
void add_delivery_options(Command& command, DeliveryOptions& options);

/// Reads a report from a file. `what` names it in error messages: "the baseline". Fails with kind usage.
Result<KernelReport> read_report_file(const std::string& path, const std::string& what);

/// Where a report goes. Opened before the tests run, so that a bad file is reported at once.
class Delivery {
 public:
  /// Fails with kind usage.
  static Result<Delivery> open(DeliveryOptions options);
  /// Writes the report to the file, or else to standard output; with a baseline, standard output gets only what
  /// changed. Returns the exit code.
  Result<int> deliver(const KernelReport& report);

 private:
  explicit Delivery(DeliveryOptions options) : options_{std::move(options)} {}
  DeliveryOptions options_;
  std::optional<KernelReport> before_;
  std::optional<OutputFile> output_;
};

/// "passed", "failed" and "skipped", with how many of each.
std::string describe_counts(const KernelReport& report);
/// Prints an error on one line; returns the exit code for it.
int tell_error(const char* command, const Error& error);

}  // namespace vmm::tool
