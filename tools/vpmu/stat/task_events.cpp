#include "stat/task_events.hpp"

#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"
#include "vpmu/registers.hpp"

namespace vmm::tool {
namespace {

namespace sel = vpmu::reg::perfevtsel;

/// The event that a fixed counter counts, for a general-purpose counter; of that of reference cycles there is none.
/// SDM 3B table 19-1.
std::uint64_t code_of(const vpmu::EventDesc& event) {
  constexpr std::uint16_t instructions = 0x100, cycles = 0x200;
  constexpr std::uint64_t inst_retired = 0xC0, unhalted = 0x3C;
  if (event.code != 0) return event.code;
  return event.counters == instructions ? inst_retired : event.counters == cycles ? unhalted : 0;
}

}  // namespace

std::optional<TaskEvent> task_event(const vpmu::EventDesc& event, std::string_view modifier) {
  constexpr std::uint8_t frontend_retired = 0xC6;
  if (event.pebs == vpmu::PebsAbility::only) return std::nullopt;
  if (modifier.find_first_not_of("ukpP") != std::string_view::npos) return std::nullopt;
  const bool user = modifier.find('u') != std::string_view::npos, kernel = modifier.find('k') != std::string_view::npos;
  TaskEvent counted{.select = sel::EVENT::make(code_of(event)) | sel::CMASK::make(event.cmask)};
  if (event.code != 0) counted.select |= sel::UMASK::make(event.umask);
  if (user || !kernel) counted.select |= sel::USR::mask;
  if (kernel || !user) counted.select |= sel::OS::mask;
  if (event.inv) counted.select |= sel::INV::mask;
  if (event.edge) counted.select |= sel::E::mask;
  if (event.any) counted.select |= sel::ANY::mask;
  const vpmu::MsrIndex extra{event.msr_index};
  if (extra == vpmu::msr::MSR_PEBS_LD_LAT_THRESHOLD) return std::nullopt;
  if (extra == vpmu::msr::MSR_PEBS_FRONTEND || (event.code == frontend_retired && event.msr_value != 0))
    counted.frontend = event.msr_value;
  else if (event.msr_index != 0)
    counted.offcore = event.msr_value;
  return counted;
}

}  // namespace vmm::tool
