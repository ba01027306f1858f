#include "uarch/profile_changes.hpp"

#include <algorithm>
#include <charconv>

#include "uarch/hierarchy.hpp"
#include "vpmu/registers.hpp"

namespace vpmu::uarch {
namespace {

constexpr std::uint64_t kib = 1024, mib = 1024 * kib;

/// How a value is written.
enum class Form : std::uint8_t { bytes, number };

struct Row {
  std::string_view name;
  Form form;
  std::uint64_t min, max;
};
// An L1D has 64 sets, and the L2 and it together no more ways than RecencySets::max_ways: Hierarchy::share() follows
// the lines of both in the same sets. A core of these generations has no load under 4 cycles (SDM 3B 18.8.1.2).
constexpr std::array<Row, parameter_count> rows{{
    {"l1d", Form::bytes, 4 * kib, 128 * kib},
    {"l2", Form::bytes, 16 * kib, 8 * mib},
    {"l3", Form::bytes, 64 * kib, ProfileChanges::max_l3},
    {"stlb", Form::number, 16, 16384},
    {"l2-cycles", Form::number, 5, 100},
    {"l3-cycles", Form::number, 6, 300},
    {"dram", Form::number, 7, ProfileChanges::max_dram},
    {"mem-ns", Form::number, 1, 1000},
    {"line-ps", Form::number, 100, 20'000},
    {"mhz", Form::number, 100, 10'000},
    {"fill-buffers", Form::number, 1, Hierarchy::max_fill_buffers},
    {"prefetch-off", Form::number, 0, reg::misc_feature_control::writable},
}};

const Row& row_of(Parameter parameter) { return rows[static_cast<std::size_t>(parameter)]; }

std::string written(Form form, std::uint64_t value) {
  if (form == Form::bytes && value != 0 && value % mib == 0) return std::to_string(value / mib) + "M";
  if (form == Form::bytes && value != 0 && value % kib == 0) return std::to_string(value / kib) + "K";
  return std::to_string(value);
}

std::string written(Parameter parameter, std::uint64_t value) {
  const Row& row = row_of(parameter);
  return std::string{row.name} + "=" + written(row.form, value);
}

std::string size_of(Shape cache) { return written(Form::bytes, cache.entries() * line_bytes); }

/// A whole number; of bytes, with K or M behind it. None if it is something else, or too large to be told.
std::optional<std::uint64_t> read_value(std::string_view text, Form form) {
  std::uint64_t value{};
  const bool is_hex = form == Form::number && text.starts_with("0x");
  if (is_hex) text.remove_prefix(2);
  const auto [at, error] = std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  if (error != std::errc{}) return std::nullopt;
  const std::string_view unit = text.substr(static_cast<std::size_t>(at - text.data()));
  if (unit.empty()) return value;
  const std::uint64_t factor = unit == "K" || unit == "k" ? kib : unit == "M" || unit == "m" ? mib : 0;
  if (form != Form::bytes || factor == 0 || value > ~std::uint64_t{0} / factor) return std::nullopt;
  return value * factor;
}

/// Text of a user's, or of a file that may hold anything.
std::string quoted(std::string_view text) {
  constexpr std::size_t max = 40;
  std::string out{'"'};
  for (const char c : text.substr(0, max)) out += c >= ' ' && c <= '~' ? c : '?';
  return out + (text.size() > max ? "...\"" : "\"");
}

/// What is wrong with the number of entries of which there is no such shape: names the nearest that there are.
ChangeRefusal no_shape(Parameter parameter, std::uint64_t value, std::uint64_t of_one) {
  const std::uint64_t entries = value / of_one;
  std::uint64_t below = entries, above = entries + 1;
  while (below > 1 && !nearest_shape(below, 1)) --below;
  while (!nearest_shape(above, 1)) ++above;
  return {.what = written(parameter, value) + ": a power of two of sets, of " + std::to_string(RecencySets::max_ways) +
                  " ways at most, has no such size",
          .advice = "give " + written(parameter, below * of_one) + " or " + written(parameter, above * of_one)};
}

}  // namespace

std::string parameter_names() {
  std::string names;
  for (const Row& row : rows) names += (names.empty() ? "" : ", ") + std::string{row.name};
  return names;
}

std::optional<Shape> nearest_shape(std::uint64_t entries, std::uint32_t ways) {
  std::optional<Shape> best;
  const auto farther = [ways](std::uint64_t a, std::uint64_t b) {  // by their ratios to `ways`
    return std::max<std::uint64_t>(a, ways) * std::min<std::uint64_t>(b, ways) >
           std::max<std::uint64_t>(b, ways) * std::min<std::uint64_t>(a, ways);
  };
  constexpr std::uint64_t max_sets = std::uint64_t{1} << 31;
  for (std::uint64_t sets = 1; sets <= std::min(entries, max_sets) && entries % sets == 0; sets *= 2) {
    const std::uint64_t of_set = entries / sets;
    if (of_set > RecencySets::max_ways || (best && farther(of_set, best->ways))) continue;
    best = Shape{.sets = static_cast<std::uint32_t>(sets), .ways = static_cast<std::uint32_t>(of_set)};
  }
  return best;
}

std::optional<ChangeRefusal> ProfileChanges::add(std::string_view text) {
  if (text.size() > max_text)
    return ChangeRefusal{.what = "a list of changes of " + std::to_string(text.size()) + " characters",
                         .advice = "give at most " + std::to_string(max_text)};
  ProfileChanges all = *this;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    if (auto refusal = all.add_one(text.substr(at, end - at))) return refusal;
    at = end + 1;
  }
  if (all.of(Parameter::dram) && all.of(Parameter::mem_ns))
    return ChangeRefusal{.what = "dram and mem-ns both say how long memory takes", .advice = "give one of them"};
  *this = all;
  return std::nullopt;
}

std::optional<ChangeRefusal> ProfileChanges::add_one(std::string_view change) {
  const std::size_t equals = std::min(change.find('='), change.size());
  const std::string_view name = change.substr(0, equals);
  const auto* const row = std::ranges::find(rows, name, &Row::name);
  if (row == rows.end())
    return ChangeRefusal{.what = "no parameter " + quoted(name),
                         .advice = "give NAME=VALUE of one of: " + parameter_names()};
  const bool has_value = equals != change.size();
  const auto value = has_value ? read_value(change.substr(equals + 1), row->form) : std::optional<std::uint64_t>{};
  const std::string bounds = written(row->form, row->min) + " to " + written(row->form, row->max);
  if (!value)
    return ChangeRefusal{
        .what = quoted(change) + " has no value",
        .advice = "give " + std::string{name} + "=" +
                  (row->form == Form::bytes ? "a number of bytes, or of K or M, " : "a whole number, ") + bounds};
  if (*value < row->min || *value > row->max)
    return ChangeRefusal{.what = quoted(change) + " is out of range", .advice = "give " + bounds};
  auto& place = values_[static_cast<std::size_t>(row - rows.begin())];
  if (place) return ChangeRefusal{.what = std::string{name} + " is set twice", .advice = "give it once"};
  place = value;
  return std::nullopt;
}

std::string ProfileChanges::text() const {
  std::string text;
  for (std::size_t n = 0; n < rows.size(); ++n)
    if (values_[n]) text += (text.empty() ? "" : ",") + written(static_cast<Parameter>(n), *values_[n]);
  return text;
}

std::optional<ChangeRefusal> ProfileChanges::apply_sizes(Profile& p) const {
  if (const auto l1d = of(Parameter::l1d)) {
    const std::uint64_t of_way = p.l1d.sets * line_bytes;
    if (*l1d % of_way != 0)
      return ChangeRefusal{
          .what = written(Parameter::l1d, *l1d) + " is no multiple of a way's " + written(Form::bytes, of_way),
          .advice = "give " + written(Parameter::l1d, (*l1d / of_way + 1) * of_way)};
    p.l1d.ways = static_cast<std::uint32_t>(*l1d / of_way);
  }
  struct Sized {
    Parameter parameter;
    Shape* shape;
    std::uint64_t of_one;
  };
  for (const Sized& s : {Sized{Parameter::l2, &p.l2, line_bytes}, Sized{Parameter::l3, &p.l3, line_bytes},
                         Sized{Parameter::stlb, &p.stlb.shared, 1}}) {
    const auto value = of(s.parameter);
    if (!value) continue;
    const auto shape = *value % s.of_one == 0 ? nearest_shape(*value / s.of_one, s.shape->ways) : std::nullopt;
    if (!shape) return no_shape(s.parameter, *value, s.of_one);
    *s.shape = *shape;
  }
  if (p.l2.entries() < p.l1d.entries())
    return ChangeRefusal{.what = "an L2 of " + size_of(p.l2) + " is smaller than the L1D of " + size_of(p.l1d),
                         .advice = "give a larger l2, or a smaller l1d"};
  if (p.l2.ways + p.l1d.ways > RecencySets::max_ways)
    return ChangeRefusal{.what = "an L2 of " + std::to_string(p.l2.ways) + " ways and an L1D of " +
                                 std::to_string(p.l1d.ways) + " have more than " +
                                 std::to_string(RecencySets::max_ways) + " together",
                         .advice = "give an l2 that is a power of two, or a smaller l1d"};
  if (p.last_level == LastLevel::inclusive && p.l3.entries() < p.l2.entries())
    return ChangeRefusal{.what = "an L3 of " + size_of(p.l3) + " cannot hold the L2's " + size_of(p.l2) +
                                 ", as one that is inclusive does",
                         .advice = "give a larger l3, or a smaller l2"};
  return std::nullopt;
}

std::optional<ChangeRefusal> ProfileChanges::apply(Profile& profile) const {
  Profile p = profile;
  if (auto refusal = apply_sizes(p)) return refusal;
  const auto take = [this](Parameter parameter, auto& value) {
    using Value = std::remove_reference_t<decltype(value)>;
    if (const auto given = of(parameter)) value = static_cast<Value>(*given);
  };
  std::uint32_t mhz = p.mhz;
  take(Parameter::l2_cycles, p.latency.l2);
  take(Parameter::l3_cycles, p.latency.l3);
  take(Parameter::mem_ns, p.memory.ns);
  take(Parameter::line_ps, p.memory.line_ps);
  take(Parameter::mhz, mhz);
  take(Parameter::fill_buffers, p.fill_buffers);
  take(Parameter::prefetch_off, p.prefetchers_off);
  p = at_frequency(p, mhz);
  take(Parameter::dram, p.latency.dram);
  const Latencies& l = p.latency;
  if (l.l1 >= l.l2 || l.l2 >= l.l3 || l.l3 >= l.dram || l.dram > max_dram)
    return ChangeRefusal{
        .what = "loads would take " + std::to_string(l.l1) + " cycles from the L1D, " + std::to_string(l.l2) +
                " from the L2, " + std::to_string(l.l3) + " from the L3 and " + std::to_string(l.dram) + " from memory",
        .advice = "give times that become longer from level to level, at most " + std::to_string(max_dram)};
  profile = p;
  return std::nullopt;
}

}  // namespace vpmu::uarch
