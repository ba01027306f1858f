// The threads of a core, which share its pipeline.
#include <algorithm>

#include "timing/pipeline.hpp"

namespace vpmu::timing {

void Pipeline::count_use(const TimedBlock& block) {
  shared_.used[CoreUse::issue] += static_cast<std::uint64_t>(block.slots);
  shared_.used[CoreUse::divider] += static_cast<std::uint64_t>(block.divider);
  for (std::size_t set = 0; set < max_port_sets; ++set) shared_.used[CoreUse::first_port_set + set] += block.ports[set];
}

void Pipeline::limit() {
  const unsigned threads = shared_.is_on != 0 ? 2 : 1;
  limits_ = {.reorder_buffer = on_.reorder_buffer / threads,
             .load_buffer = on_.load_buffer / threads,
             .store_buffer = on_.store_buffer / threads,
             .scheduler = on_.scheduler / threads};
}

CoreUse Pipeline::share_with(const CoreUse* other) {
  constexpr unsigned all = 256, half = all / 2;
  const auto passed = static_cast<std::uint64_t>(std::max<Time>(now() - shared_.since, 0));
  CoreUse use;
  use.of.fill(half);
  for (std::size_t of = 0; shared_.is_on != 0 && passed != 0 && of < CoreUse::count; ++of)
    use.of[of] = static_cast<std::uint8_t>(std::min(shared_.used[of], passed) * (all - 1) / passed);
  leave_states();
  shared_ = {.since = now(), .is_on = other != nullptr ? 1U : 0U};
  for (std::size_t of = 0; other != nullptr && of < CoreUse::count; ++of) {
    const unsigned used = std::min<unsigned>(other->of[of], half);
    shared_.more[of] = static_cast<std::uint16_t>(std::min((used << 16U) / (all - used), 0xFFFFU));
  }
  limit();
  return use;
}

}  // namespace vpmu::timing
