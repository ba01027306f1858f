#pragma once
#include <cstddef>
#include <span>
#include <string>

#include "support/result.hpp"
#include "vpmu/pebs.hpp"

namespace CLI {
class App;
}

namespace vmm::tool {

/// PEBS records as they lie in a buffer, a line for each: its number, then "FIELD VALUE" for each field that the format has, in the order of the
/// record and in hexadecimal. Fails with kind usage when there is no record, or bytes are left behind the last.
Result<std::string> list_records(vpmu::PebsFormat format, std::span<const std::byte> buffer);

/// Adds `vpmu records` to the command line: prints list_records() of a file. `exit_code`: 0 done, 1 the output could not be written, 2 the file
/// cannot be read or is no buffer of such records. It must live as long as `app`.
void add_records(CLI::App& app, int& exit_code);

}  // namespace vmm::tool
