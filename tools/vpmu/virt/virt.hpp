#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu virt` to the command line: gives libvirt's domains our PMU, or takes it away. When it is given, parsing
/// does that, prints what was done and sets `exit_code`, which must live as long as `app`: 0 done, 1 libvirt or the
/// host refused, 2 wrong use, or a domain that cannot have the PMU.
void add_virt(Command& app, int& exit_code);

}  // namespace vmm::tool
