#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "fuzz_input.hpp"
#include "tables/records.hpp"

// Random bytes as a buffer of PEBS records, in a file that may be shorter than it claimed: prints one line for each
// record, whatever its content.

namespace {

using vpmu::fuzz::require;

std::uint64_t records_listed = 0;

}  // namespace

extern "C" std::uint64_t fuzz_work() { return records_listed; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  vpmu::fuzz::Input input{data, size};
  const auto format = static_cast<vpmu::PebsFormat>(input.take<std::uint8_t>() % 4);
  const std::size_t record = vpmu::record_size(format);
  const bool rounds = input.take<std::uint8_t>() % 4 != 0;
  const std::size_t shorter = input.take<std::uint16_t>() % 512;
  const std::size_t head = std::min<std::size_t>(size, 4);
  const auto rest = std::as_bytes(std::span{data, size}.subspan(head));
  const auto buffer = rest.first(rounds ? rest.size() / record * record : rest.size());
  const std::size_t there = buffer.size() - std::min(shorter % 3 == 0 ? shorter : 0, buffer.size());
  std::size_t at = 0;
  const auto read = [&](std::span<std::byte> room) -> vmm::Result<std::size_t> {
    const auto part = buffer.subspan(at, std::min(room.size(), there - at));
    std::ranges::copy(part, room.begin());
    at += part.size();
    return part.size();
  };
  std::string text;
  const auto listed = vmm::tool::list_records(format, buffer.size(), read, [&text](std::string_view more) {
    text += more;
    return true;
  });
  const bool whole = !buffer.empty() && buffer.size() % record == 0;
  require(listed.has_value() == (whole && there == buffer.size()), "whole records are listed, and others are refused");
  const auto lines = static_cast<std::size_t>(std::ranges::count(text, '\n'));
  require(lines == (whole ? there / record : 0), "a line for each record that is there");
  require(text.empty() || text.ends_with('\n'), "lines are whole");
  require(listed || !listed.error().what.empty(), "a refusal says why");
  records_listed += lines;
  return 0;
}
