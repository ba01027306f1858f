#pragma once
#include <string>
#include <vector>

#include "description.hpp"

namespace vmm::tool {

/// One page of the manual, section 1.
struct Page {
  std::string name;  ///< The name of its file: vpmu-run.1.
  std::string text;  ///< In man(7).
};

/// The foot of each page.
struct ManualFoot {
  std::string version;  ///< The program's, with its name.
  std::string date;     ///< YYYY-MM-DD.
};

/// The program's page, then one for each of its commands; commands below a command are sections of its page.
std::vector<Page> manual_pages(const CommandDescription& program, const ManualFoot& foot);

}  // namespace vmm::tool
