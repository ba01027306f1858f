#include "uarch/sharing.hpp"

#include <algorithm>

#include "uarch/hierarchy.hpp"

namespace vpmu::uarch {

Snoop Sharing::ask(const Hierarchy& by, std::uint64_t line, bool for_itself) {
  Snoop all{};
  for (Hierarchy* const core : cores_)
    if (core != &by) all = std::max(all, core->snooped(line, for_itself));
  return all;
}

}  // namespace vpmu::uarch
