#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "support/result.hpp"

namespace vmm::tool {

/// How `vpmu events` writes its listing.
enum class ListingFormat : std::uint8_t {
  text,  ///< Within 100 columns: what there is, and how good it is with the source exact and a model of the pipeline.
  wide,  ///< Everything, with a column for each source.
  markdown,
  json,
  gaps,  ///< Only the precise events that the exact source does not deliver, and why.
};

/// What `vpmu events` was asked for.
struct ListingOptions {
  std::string_view model;              ///< A machine's name; may be empty for the gaps of all generations.
  std::string_view source;             ///< Only this counting source; empty for all.
  std::span<const std::string> words;  ///< Only events that have all of these in their names, in either case.
  ListingFormat format{};
};

/// The events of a model: name, encoding, whether precise, on which counters, and how each counting source delivers
/// them. Ends with a newline. Fails with a usage error on an unknown model or source, and if no event has the words.
/// Costs a few milliseconds.
Result<std::string> list_events(const ListingOptions& options);

}  // namespace vmm::tool
