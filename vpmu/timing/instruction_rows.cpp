#include "timing/instruction_rows.hpp"

#include <algorithm>
#include <span>
#include <string>

#include "timing_rows/broadwell.hpp"
#include "timing_rows/haswell.hpp"
#include "timing_rows/ivy_bridge.hpp"
#include "timing_rows/nehalem.hpp"
#include "timing_rows/sandy_bridge.hpp"
#include "timing_rows/skylake.hpp"
#include "timing_rows/skylake_sp.hpp"

namespace vpmu::timing {
namespace {

std::span<const InstructionRow> rows_of(RowSet set) {
  switch (set) {
    case RowSet::nehalem: return nehalem_rows;
    case RowSet::sandy_bridge: return sandy_bridge_rows;
    case RowSet::ivy_bridge: return ivy_bridge_rows;
    case RowSet::haswell: return haswell_rows;
    case RowSet::broadwell: return broadwell_rows;
    case RowSet::skylake: return skylake_rows;
    case RowSet::skylake_sp: return skylake_sp_rows;
  }
  return {};
}

std::optional<InstructionRow> find_exactly(std::span<const InstructionRow> rows, std::string_view form) {
  const std::uint64_t hash = form_hash(form);
  const auto found = std::ranges::lower_bound(rows, hash, {}, &InstructionRow::form);
  if (found == rows.end() || found->form != hash) return std::nullopt;
  return *found;
}

/// The registers that may stand where memory of these bits does, the likeliest first.
std::array<std::string_view, 3> registers_for(std::string_view bits, std::string_view form) {
  const bool is_vector = form.find(",x") != std::string_view::npos || form.find(" x") != std::string_view::npos ||
                         form.find(",y") != std::string_view::npos || form.find(" y") != std::string_view::npos;
  const bool is_mmx = form.find("mm") != std::string_view::npos;
  std::string_view general{};
  if (bits == "8") general = "r8";
  if (bits == "16") general = "r16";
  if (bits == "32") general = "r32";
  if (bits == "64") general = "r64";
  if (is_vector) return {bits == "256" ? "y" : "x", general, {}};
  if (is_mmx) return {"mm", general, {}};
  return {general, {}, {}};
}

}  // namespace

std::optional<InstructionRow> find_row(RowSet set, std::string_view form) {
  const std::span rows = rows_of(set);
  if (auto row = find_exactly(rows, form)) return row;
  std::size_t at = form.find_first_of(' ');
  while (at != std::string_view::npos && (form[at + 1] != 'm' || form[at + 2] == 'm')) at = form.find(',', at + 1);
  if (at == std::string_view::npos) return std::nullopt;
  ++at;
  const std::size_t end = std::min(form.find(',', at), form.size());
  for (const std::string_view general : registers_for(form.substr(at + 1, end - at - 1), form)) {
    if (general.empty()) continue;
    const std::string with_register = std::string{form.substr(0, at)}.append(general).append(form.substr(end));
    if (auto row = find_exactly(rows, with_register)) return row;
  }
  return std::nullopt;
}

}  // namespace vpmu::timing
