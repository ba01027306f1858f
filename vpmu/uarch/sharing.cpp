#include "uarch/sharing.hpp"

#include <algorithm>

#include "uarch/hierarchy.hpp"

namespace vpmu::uarch {

Snoop Sharing::ask(const Hierarchy& by, std::uint64_t line, bool for_itself) {
  Snoop all;
  for (Hierarchy* const core : cores_) {
    if (core == &by) continue;
    const Snoop one = core->snooped(line, for_itself);
    all.in_core = std::max(all.in_core, one.in_core);
    all.in_l3 = all.in_l3 || one.in_l3;
  }
  return all;
}

}  // namespace vpmu::uarch
