#include "tables/event_encoding.hpp"

#include <fmt/format.h>

#include <bit>

#include "vpmu/registers.hpp"

namespace vmm::tool {
namespace {

namespace sel = vpmu::reg::perfevtsel;

bool is_fixed(const vpmu::EventDesc& event) { return (event.counters & vpmu::fixed_mask) != 0; }

int fixed_number(const vpmu::EventDesc& event) { return std::countr_zero(event.counters) - 8; }

/// perf's name for a fixed counter's event: its own codes differ from the placeholders of Intel's list.
std::string fixed_perf_syntax(const vpmu::EventDesc& event) {
  if (event.any) return "cpu/event=0x3c,any=1/";
  switch (fixed_number(event)) {
    case 0: return "instructions";
    case 1: return "cycles";
    default: return "ref-cycles";
  }
}

/// perf's name for the field that sets an extra MSR; the field is the whole register.
std::string_view msr_field(std::uint32_t msr_index) {
  constexpr std::uint32_t pebs_ld_lat = 0x3F6;
  constexpr std::uint32_t pebs_frontend = 0x3F7;
  if (msr_index == pebs_ld_lat) return "ldlat";
  return msr_index == pebs_frontend ? "frontend" : "offcore_rsp";
}

}  // namespace

std::string raw_encoding(const vpmu::EventDesc& event) {
  if (is_fixed(event)) return fmt::format("fixed {}", fixed_number(event));
  const std::uint64_t select = sel::EVENT::make(event.code) | sel::UMASK::make(event.umask) | sel::E::make(event.edge) |
                               sel::ANY::make(event.any) | sel::INV::make(event.inv) | sel::CMASK::make(event.cmask);
  return fmt::format("r{:04x}", select);
}

std::string perf_syntax(const vpmu::EventDesc& event) {
  if (is_fixed(event)) return fixed_perf_syntax(event);
  std::string text = fmt::format("cpu/event={:#x},umask={:#x}", event.code, event.umask);
  if (event.cmask != 0) text += fmt::format(",cmask={}", event.cmask);
  if (event.inv) text += ",inv=1";
  if (event.edge) text += ",edge=1";
  if (event.any) text += ",any=1";
  if (event.msr_index != 0) text += fmt::format(",{}={:#x}", msr_field(event.msr_index), event.msr_value);
  return text + (event.pebs == vpmu::PebsAbility::only ? "/p" : "/");
}

std::string counter_list(const vpmu::EventDesc& event) {
  if (is_fixed(event)) return fmt::format("fixed {}", fixed_number(event));
  const unsigned counters = event.counters;
  std::string text;
  for (unsigned first = 0; first < 8; ++first) {
    if ((counters >> first & 1U) == 0) continue;
    text += fmt::format("{}{}", text.empty() ? "" : ",", first);
    const unsigned last = first + static_cast<unsigned>(std::countr_one(counters >> first)) - 1;
    if (last < first + 2) continue;
    text += fmt::format("-{}", last);
    first = last;
  }
  return text;
}

}  // namespace vmm::tool
