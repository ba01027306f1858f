#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "support/result.hpp"
#include "vpmu/pebs.hpp"

namespace vmm::tool {

class Command;

/// Reads the next bytes of a buffer: fewer than there is room for only at the buffer's end.
using ReadBytes = std::function<Result<std::size_t>(std::span<std::byte> room)>;
/// Prints the next lines; false: nothing more can be printed.
using PrintText = std::function<bool(std::string_view text)>;

enum class RecordListing {
  text,  ///< A line for each: its number, then "FIELD VALUE" for each field, in hexadecimal.
  json,  ///< A JSON object for each, on a line of its own: "record", its number, and the fields as numbers.
};

/// Prints the PEBS records of a buffer, with the fields of the format, in the order of the record. Needs the
/// same small amount of memory for any number of records. Fails with kind usage if there is no record, if bytes are
/// left after the last one, or if `read` gives fewer than `bytes`.
Result<void> list_records(vpmu::PebsFormat format, std::uint64_t bytes, const ReadBytes& read,
                          const PrintText& print_text, RecordListing listing = RecordListing::text);

/// Adds `vpmu records` to the command line: prints list_records() of a file. `exit_code`: 0 done, 1 the output could
/// not be written, 2 the file cannot be read or is no buffer of such records. It must live as long as `app`.
void add_records(Command& app, int& exit_code);

}  // namespace vmm::tool
