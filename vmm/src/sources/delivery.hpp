#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "vpmu/event.hpp"
#include "vpmu/generation.hpp"

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
  std::string basis;  ///< What an estimate is made of, for people: "200 per 1000 cycles". "always 0" where nothing can happen. Else empty.
};

/// A source's answer for an event of a generation. Never fails.
using DeliveryRule = EventDelivery (*)(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event);

/// How the source of that name (registry.hpp) delivers events; null for a name that is not known here.
DeliveryRule delivery_rule(std::string_view source);

/// The delivery's name: "exact", "estimated" or "not at all".
std::string_view to_string(Delivery delivery);

}  // namespace vmm
