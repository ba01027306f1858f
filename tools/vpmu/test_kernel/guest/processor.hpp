#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vmm::tool::checker {

/// The processor of this guest, and how Linux drives it, as given by the arguments.
struct Processor {
  std::string driver;            ///< As the kernel's log names it: "Skylake events".
  bool known{true};              ///< Linux has events and PEBS for it.
  unsigned version{};            ///< The version of architectural performance monitoring.
  unsigned counters{}, fixed{};  ///< General-purpose and fixed ones.
  unsigned width{};              ///< Bits of each counter.
  bool full_width{};             ///< Full-width writes (IA32_A_PMCi) are available.
  unsigned pebs_format{};
  unsigned precise{};               ///< The highest precise_ip.
  unsigned branches{};              ///< Entries of the LBR.
  bool call_stack{};                ///< The LBR can follow calls and returns.
  bool branch_trace{};              ///< Linux accepts a period of 1, which BTS needs.
  std::uint64_t loads{}, stores{};  ///< The events of `perf mem`; 0: there is none.
  bool frontend{};                  ///< There are FRONTEND_RETIRED events.
  std::uint64_t offcore{};          ///< The OFFCORE_RSP value for reads with any response.
  bool perf{};                      ///< Also check with perf.
  std::string wrong;                ///< The check that is made to expect something wrong.
};

/// Reads arguments of the form "name=value". Nothing if a name is unknown or a value is not a number.
std::optional<Processor> read_processor(const std::vector<std::string_view>& arguments);

}  // namespace vmm::tool::checker
