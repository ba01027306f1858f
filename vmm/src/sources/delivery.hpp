#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "sources/source_options.hpp"
#include "vpmu/event.hpp"
#include "vpmu/generation.hpp"
#include "vpmu/pipeline_totals.hpp"

namespace vmm {

/// How good a source's counts of an event are.
enum class Delivery : std::uint8_t {
  none,       ///< The event can be programmed and reads 0.
  estimated,  ///< From time, or from a model.
  exact,      ///< Every event is counted.
  nearest,    ///< The host's most similar event is counted instead.
};

/// How one source delivers one event.
struct EventDelivery {
  Delivery delivery{};
  std::string basis;  ///< For people: what an estimate is based on ("time on the vCPU"), which host event is
                      ///< counted, or why nothing is. "always 0" if the event cannot occur. May be empty.
};

/// A source's answer for an event of a generation. Never fails.
using DeliveryRule = EventDelivery (*)(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event);

/// How the exact source delivers an event when a model of the pipeline tells it these quantities. Without any, a cycle
/// is an instruction. `changes` of the generation's profile must fit it.
EventDelivery exact_delivery(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event,
                             vpmu::PipelineQuantities told, const vpmu::uarch::ProfileChanges& changes = {});

/// How a source delivers events; for a source that depends on the host, on one class of hosts.
struct HostedRule {
  std::string_view source;  ///< Its name (registry.hpp).
  std::string_view name;    ///< The same, with the class of hosts, or how it keeps time.
  DeliveryRule rule;
  TimeModel time{};
};
/// All rules; those of one source are adjacent.
std::span<const HostedRule> delivery_rules();

/// How the named source delivers events, on the class of hosts closest to the guest's model; null for an unknown name.
DeliveryRule delivery_rule(std::string_view source, TimeModel time = TimeModel::instructions);

/// The same of a processor model with these changes, which must fit it.
using ChangedRule = std::function<EventDelivery(const vpmu::GenerationDesc& generation, const vpmu::EventDesc& event)>;
ChangedRule delivery_rule(std::string_view source, TimeModel time, const vpmu::uarch::ProfileChanges& changes);

/// An event as it is programmed, as a row of the generation's table would have it. `msr_value`: of the extra register,
/// for an off-core event.
vpmu::EventDesc programmed_event(const vpmu::GenerationDesc& generation, std::string_view name,
                                 const vpmu::EventSpec& spec, std::uint64_t msr_value);

/// The delivery's name: "exact", "nearest", "estimated" or "not counted".
std::string_view to_string(Delivery delivery);

}  // namespace vmm
