#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace vmm::tool::checker {

std::string decimal(std::uint64_t number);
std::string hexadecimal(std::uint64_t number);
/// "refused: Invalid argument".
std::string refusal(int error);

/// Prints a line for each check: "CHECK", its name, its outcome, what was expected and what was seen, separated by
/// tabs.
class Report {
 public:
  /// `wrong`: the name of a check that is made to expect something wrong, to see its failure reported.
  explicit Report(std::string wrong) : wrong_{std::move(wrong)} {}
  void check(std::string_view name, bool holds, std::string_view expected, std::string_view seen);
  void equal(std::string_view name, std::uint64_t expected, std::uint64_t seen);
  void equal(std::string_view name, std::string_view expected, std::string_view seen) {
    check(name, expected == seen, expected, seen);
  }
  /// Skips a check that is meaningless on this processor; `why` says so.
  void skip(std::string_view name, std::string_view why);
  /// Prints the number of checks. If this line is missing, so may be some checks.
  void end() const;

 private:
  void line(std::string_view name, std::string_view outcome, std::string_view expected, std::string_view seen);
  std::string wrong_;
  unsigned count_{};
};

}  // namespace vmm::tool::checker
