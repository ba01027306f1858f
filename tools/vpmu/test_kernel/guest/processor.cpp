#include "test_kernel/guest/processor.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

namespace vmm::tool::checker {
namespace {

template <class Number>
bool read(std::string_view text, Number& number) {
  const char* const end = std::to_address(text.end());
  const auto [stopped, error] = std::from_chars(std::to_address(text.begin()), end, number);
  return error == std::errc{} && stopped == end;
}

bool read(std::string_view text, bool& flag) {
  flag = text == "1";
  return text == "0" || text == "1";
}

struct Field {
  std::string_view name;
  bool (*take)(std::string_view text, Processor& processor);
};

constexpr auto fields = std::to_array<Field>({
    {"driver", [](std::string_view t, Processor& p) { return p.driver = t, true; }},
    {"known", [](std::string_view t, Processor& p) { return read(t, p.known); }},
    {"version", [](std::string_view t, Processor& p) { return read(t, p.version); }},
    {"counters", [](std::string_view t, Processor& p) { return read(t, p.counters); }},
    {"fixed", [](std::string_view t, Processor& p) { return read(t, p.fixed); }},
    {"width", [](std::string_view t, Processor& p) { return read(t, p.width); }},
    {"full-width", [](std::string_view t, Processor& p) { return read(t, p.full_width); }},
    {"pebs-format", [](std::string_view t, Processor& p) { return read(t, p.pebs_format); }},
    {"precise", [](std::string_view t, Processor& p) { return read(t, p.precise); }},
    {"branches", [](std::string_view t, Processor& p) { return read(t, p.branches); }},
    {"call-stack", [](std::string_view t, Processor& p) { return read(t, p.call_stack); }},
    {"branch-trace", [](std::string_view t, Processor& p) { return read(t, p.branch_trace); }},
    {"loads", [](std::string_view t, Processor& p) { return read(t, p.loads); }},
    {"stores", [](std::string_view t, Processor& p) { return read(t, p.stores); }},
    {"frontend", [](std::string_view t, Processor& p) { return read(t, p.frontend); }},
    {"offcore", [](std::string_view t, Processor& p) { return read(t, p.offcore); }},
    {"perf", [](std::string_view t, Processor& p) { return read(t, p.perf); }},
    {"wrong", [](std::string_view t, Processor& p) { return p.wrong = t, true; }},
});

}  // namespace

std::optional<Processor> read_processor(const std::vector<std::string_view>& arguments) {
  Processor processor;
  for (const std::string_view argument : arguments) {
    const std::size_t equals = std::min(argument.find('='), argument.size());
    const auto* const field = std::ranges::find(fields, argument.substr(0, equals), &Field::name);
    if (field == fields.end() || equals == argument.size()) return std::nullopt;
    if (!field->take(argument.substr(equals + 1), processor)) return std::nullopt;
  }
  return processor;
}

}  // namespace vmm::tool::checker
