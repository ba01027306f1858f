#pragma once
#include <span>
#include <string>
#include <string_view>

#include "vpmu/event.hpp"

namespace vmm {

/// How good a source's counts of an event are.
enum class Delivery : std::uint8_t {
  none,       ///< The event can be programmed and reads 0.
  estimated,  ///< From time or a stated rate.
  exact,      ///< Every event is counted.
};

/// How one source delivers one event.
struct EventDelivery {
  Delivery delivery{};
  std::string basis;  ///< What an estimate is made of, for people: "200 per 1000 cycles". Empty otherwise.
};

/// A counting source's answer for every event.
struct SourceDelivery {
  std::string_view source;                                ///< As users type it: "clock".
  EventDelivery (*deliver)(const vpmu::EventDesc& event);  ///< Never fails.
};

/// The sources that exist, in the order in which they are listed.
std::span<const SourceDelivery> source_deliveries();

/// The delivery's name: "exact", "estimated" or "not at all".
std::string_view to_string(Delivery delivery);

}  // namespace vmm
