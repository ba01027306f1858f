#include "sources/delivery.hpp"

#include <fmt/format.h>

#include <array>

#include "sources/clock_rates.hpp"

namespace vmm {
namespace {

EventDelivery clock_delivery(const vpmu::EventDesc& event) {
  const ClockRate rate = clock_rate(event.counts, {.cmask = event.cmask, .edge = event.edge, .inv = event.inv});
  switch (rate.basis) {
    case ClockBasis::none: return {};
    case ClockBasis::time: return {Delivery::estimated, "time on the vCPU"};
    case ClockBasis::rate: return {Delivery::estimated, fmt::format("{} per 1000 cycles", rate.per_1000_cycles)};
  }
  return {};
}

constexpr std::array deliveries{SourceDelivery{"clock", clock_delivery}};

}  // namespace

std::span<const SourceDelivery> source_deliveries() { return deliveries; }

std::string_view to_string(Delivery delivery) {
  switch (delivery) {
    case Delivery::none: return "not at all";
    case Delivery::estimated: return "estimated";
    case Delivery::exact: return "exact";
  }
  return "";
}

}  // namespace vmm
