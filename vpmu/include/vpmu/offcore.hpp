#pragma once
#include <array>
#include <cstdint>

// Off-core response events: requests that leave the core, and who answers them. SDM
// 3B 18.8.1.3, 18.9.5, 18.11.4, 18.13.5.
namespace vpmu {

/// The requests that are modelled. Software prefetches count as reads of data and for ownership, as reads of data do
/// those of the L1D's prefetchers and of page walks (SDM 3B table 18-36); prefetch_data_read are those of the L2's.
/// There are no write-backs and no device accesses.
enum class OffcoreRequest : std::uint8_t { demand_data_read, demand_rfo, demand_code_read, prefetch_data_read };
/// Number of kinds of requests.
inline constexpr unsigned offcore_request_count = 4;
/// Who can answer them: the L3 with a line in state E, without asking another core; memory; the L3 with a line that
/// another core holds unmodified (S) or modified (M).
enum class OffcoreSupplier : std::uint8_t { l3, local_dram, l3_shared, l3_modified };
/// Number of suppliers.
inline constexpr unsigned offcore_supplier_count = 4;

/// Index of a request with its supplier in OffcoreCounts, and their bit in an OffcoreFilter.
constexpr unsigned offcore_cell(OffcoreRequest request, OffcoreSupplier supplier) {
  return static_cast<unsigned>(request) * offcore_supplier_count + static_cast<unsigned>(supplier);
}
inline constexpr unsigned offcore_cell_count = offcore_request_count * offcore_supplier_count;  ///< Number of indices.

/// Number of requests, by offcore_cell().
using OffcoreCounts = std::array<std::uint16_t, offcore_cell_count>;
/// The requests and suppliers that a register selects, by offcore_cell().
using OffcoreFilter = std::uint16_t;
static_assert(offcore_cell_count <= 16);

/// The bits of a generation's MSR_OFFCORE_RSP_x. The bits of demand requests are the same in all generations. SDM 3B
/// tables 18-26, 18-35 to 18-38, 18-48, 18-60, 18-61.
struct OffcoreLayout {
  std::array<std::uint64_t, offcore_request_count> requests{1U << 0U, 1U << 1U, 1U << 2U, 1U << 4U};  ///< 0: no bit.
  std::uint64_t any_response;  ///< Selects every supplier, whatever else is set; 0: there is no such bit.
  /// A register selects a supplier if it has a bit of both masks set; where `snoop` is 0, of `supplier` alone.
  struct Answer {
    std::uint64_t supplier{}, snoop{};
  };
  std::array<Answer, offcore_supplier_count> answers;  ///< By OffcoreSupplier.
  /// The bits of one supplier.
  constexpr Answer& of(OffcoreSupplier s) { return answers[static_cast<unsigned>(s)]; }
};

/// What a value of the register selects: each request whose bit is set, with each supplier that is selected.
constexpr OffcoreFilter offcore_filter(const OffcoreLayout& layout, std::uint64_t value) {
  const bool any = (value & layout.any_response) != 0;
  const auto is_meant = [&](const OffcoreLayout::Answer& a) {
    return any || ((value & a.supplier) != 0 && (a.snoop == 0 || (value & a.snoop) != 0));
  };
  unsigned filter = 0;
  for (unsigned request = 0; request < offcore_request_count; ++request)
    for (unsigned supplier = 0; supplier < offcore_supplier_count; ++supplier)
      if ((value & layout.requests[request]) != 0 && is_meant(layout.answers[supplier]))
        filter |= 1U << offcore_cell(static_cast<OffcoreRequest>(request), static_cast<OffcoreSupplier>(supplier));
  return static_cast<OffcoreFilter>(filter);
}

/// The sum of the counts that the filter selects.
template <class Counts>
constexpr std::uint64_t offcore_sum(const Counts& counts, OffcoreFilter filter) {
  std::uint64_t sum = 0;
  for (unsigned cell = 0; cell < offcore_cell_count; ++cell)
    if ((filter >> cell & 1) != 0) sum += counts[cell];
  return sum;
}

}  // namespace vpmu
