#include "shared/set_option.hpp"

#include <fmt/format.h>

#include "command_line.hpp"
#include "model/own_part.hpp"

namespace vmm::tool {

void add_set_option(Command& command, std::vector<std::string>& set) {
  command.add_option(
      "--set", set,
      fmt::format("with source exact, what of the model's caches and memory is different: NAME=VALUE,..., of {}; "
                  "`vpmu models -v` prints the model's own. CPUID tells the sizes of caches. A restored machine goes "
                  "on as it was saved",
                  vpmu::uarch::parameter_names()));
}

Result<vpmu::uarch::ProfileChanges> read_changes(const std::vector<std::string>& set) {
  vpmu::uarch::ProfileChanges changes;
  for (const std::string& list : set) VMM_TRY(add_changes(list, changes));
  return changes;
}

}  // namespace vmm::tool
