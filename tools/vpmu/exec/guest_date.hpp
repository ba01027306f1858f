#pragma once
#include <cstdint>
#include <span>
#include <string>

namespace vmm::tool {

/// The time of day for a guest whose user has named none, in seconds since 1970: `least` or, if a file in these
/// directories has changed since, the midnight (UTC) that follows that change. So no file is of the guest's future, and
/// the same files give the same date. Looks at the first 10,000 entries, of these file systems alone; what is dated in
/// this host's own future does not count.
std::int64_t guest_date(std::int64_t least, std::span<const std::string> directories);

}  // namespace vmm::tool
