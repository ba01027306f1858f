#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// What the processor that this runs on has, and what Linux calls it: as the arguments tell.
struct Processor {
  std::string driver;            ///< As the kernel's log names it: "Skylake events".
  bool known{true};              ///< Linux has events and PEBS for it.
  unsigned version{};            ///< Of architectural performance monitoring.
  unsigned counters{}, fixed{};  ///< General-purpose and fixed ones.
  unsigned width{};              ///< Their bits.
  bool full_width{};             ///< They take writes of all their bits.
  unsigned pebs_format{};
  unsigned precise{};               ///< The highest precise_ip.
  unsigned branches{};              ///< Entries of the LBR.
  bool call_stack{};                ///< The LBR can follow calls and returns.
  bool branch_trace{};              ///< Linux takes a period of 1, which BTS needs.
  std::uint64_t loads{}, stores{};  ///< The events of `perf mem`; 0: there is none.
  bool frontend{};                  ///< There are FRONTEND_RETIRED events.
  std::uint64_t offcore{};          ///< What OFFCORE_RSP takes for reads with any answer.
  bool perf{};                      ///< There is a perf to be checked, too.
  std::string wrong;                ///< A check that is to expect something wrong.
};

/// Reads arguments of the form "name=value". Nothing where one is not known or no number.
std::optional<Processor> read_processor(const std::vector<std::string_view>& arguments);

}  // namespace vmm::tool::checker
