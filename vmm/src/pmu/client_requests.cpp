#include "pmu/client_requests.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <span>

#include <fmt/format.h>

namespace vmm {
namespace {

using vpmu::GuestLinear;

/// The code of a request, up to its end.
constexpr std::array<std::uint8_t, 19> preamble{0x48, 0xC1, 0xC7, 0x03, 0x48, 0xC1, 0xC7, 0x0D, 0x48, 0xC1,
                                                0xC7, 0x3D, 0x48, 0xC1, 0xC7, 0x33, 0x48, 0x87, 0xDB};

/// A tool's requests begin at its two letters.
constexpr std::uint64_t tool(char first, char second) {
  return static_cast<std::uint64_t>(first) << 24U | static_cast<std::uint64_t>(second) << 16U;
}

struct Known {
  std::uint64_t code;
  ClientRequest::Kind kind;
  unsigned label;  ///< Which argument is a text; 0: none.
};
using Kind = ClientRequest::Kind;
constexpr std::uint64_t callgrind = tool('C', 'T'), vpmus = tool('V', 'P');
constexpr std::array known{Known{callgrind + 0, Kind::dump_stats, 0},
                           Known{callgrind + 1, Kind::zero_stats, 0},
                           Known{callgrind + 2, Kind::toggle_collect, 0},
                           Known{callgrind + 3, Kind::dump_stats, 1},
                           Known{callgrind + 4, Kind::start_instrumentation, 0},
                           Known{callgrind + 5, Kind::stop_instrumentation, 0},
                           Known{vpmus + 0, Kind::begin_region, 1},
                           Known{vpmus + 1, Kind::end_region, 0}};

/// Up to its NUL, the first byte that cannot be read, or the most that a label may have. Of a text that the program has
/// not touched yet, so that its kernel has not mapped it, the address.
std::string read_label(std::uint64_t at, GuestView& view) {
  std::string label;
  std::array<std::byte, 1> byte{};
  if (view.read_current(GuestLinear{at}, byte)) return fmt::format("{:#x}", at);
  while (label.size() < ClientRequest::max_label && !view.read_current(GuestLinear{at + label.size()}, byte) &&
         byte[0] != std::byte{0})
    label.push_back(static_cast<char>(byte[0]));
  return label;
}

}  // namespace

std::optional<ClientRequest> read_client_request(const RbxExchange& exchange, GuestView& view) {
  std::array<std::byte, preamble.size()> code{};
  const auto at = GuestLinear{exchange.behind - preamble.size()};
  const auto same = [](std::byte read, std::uint8_t expected) {
    return std::to_integer<std::uint8_t>(read) == expected;
  };
  constexpr unsigned user = 3;
  if (view.fetch(at, code, user) != code.size() || !std::ranges::equal(code, preamble, same)) return std::nullopt;
  std::array<std::uint64_t, 2> words{};
  if (view.read_current(GuestLinear{exchange.rax}, std::as_writable_bytes(std::span{words}))) return std::nullopt;
  const auto found = std::ranges::find(known, words[0], &Known::code);
  if (found == known.end()) return std::nullopt;
  ClientRequest request{.kind = found->kind, .label = {}};
  if (found->label != 0) request.label = read_label(words[found->label], view);
  return request;
}

}  // namespace vmm
