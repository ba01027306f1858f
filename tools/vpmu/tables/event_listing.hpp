#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "support/result.hpp"

namespace vmm::tool {

/// How `vpmu events` writes its listing.
enum class ListingFormat : std::uint8_t {
  text,
  markdown,
  json,
  gaps,  ///< Only the precise events that the exact source does not deliver, and why.
};

/// What `vpmu events` was asked for.
struct ListingOptions {
  std::string_view model;   ///< A machine's name; may be empty for the gaps of all generations.
  std::string_view source;  ///< Only this counting source; empty for all.
  ListingFormat format{};
};

/// The events of a model: name, encoding, whether precise, on which counters, and how each counting source delivers
/// them. Ends with a newline. Fails with a usage error on an unknown model or source. Costs a few milliseconds.
Result<std::string> list_events(const ListingOptions& options);

}  // namespace vmm::tool
