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
  nearest,    ///< Counted is the host's event that comes nearest.
};

/// How one source delivers one event.
struct EventDelivery {
  Delivery delivery{};
  std::string basis;  ///< What an estimate is made of, for people: "200 per 1000 cycles"; whose event is taken; why
                      ///< there is none. "always 0" where nothing can happen. May be empty.
};

/// A source's answer for an event of a generation. Never fails.
using DeliveryRule = EventDelivery (*)(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event);

/// How a source delivers events, on one class of hosts where these decide.
struct HostedRule {
  std::string_view source;  ///< Its name (registry.hpp).
  std::string_view name;    ///< The same, with the class of hosts.
  DeliveryRule rule;
};
/// All of them; those of a source one after the other.
std::span<const HostedRule> delivery_rules();

/// How the source of that name delivers events, on the class of hosts that is nearest to the guest's model; null for a
/// name that is not known.
DeliveryRule delivery_rule(std::string_view source);

/// The delivery's name: "exact", "nearest", "estimated" or "not at all".
std::string_view to_string(Delivery delivery);

}  // namespace vmm
