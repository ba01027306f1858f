#pragma once
#include <cstdint>
#include <span>
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
  nearest,    ///< The host's most similar event is counted instead.
};

/// How one source delivers one event.
struct EventDelivery {
  Delivery delivery{};
  std::string basis;  ///< For people: what an estimate is based on ("200 per 1000 cycles"), which host event is
                      ///< counted, or why nothing is. "always 0" if the event cannot occur. May be empty.
};

/// A source's answer for an event of a generation. Never fails.
using DeliveryRule = EventDelivery (*)(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event);

/// How a source delivers events; for a source that depends on the host, on one class of hosts.
struct HostedRule {
  std::string_view source;  ///< Its name (registry.hpp).
  std::string_view name;    ///< The same, with the class of hosts.
  DeliveryRule rule;
};
/// All rules; those of one source are adjacent.
std::span<const HostedRule> delivery_rules();

/// How the named source delivers events, on the class of hosts closest to the guest's model; null for an unknown name.
DeliveryRule delivery_rule(std::string_view source);

/// The delivery's name: "exact", "nearest", "estimated" or "not at all".
std::string_view to_string(Delivery delivery);

}  // namespace vmm
