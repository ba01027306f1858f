#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu virt` to the command line: gives libvirt's domains our PMU, and takes it away. When it is chosen, parsing
/// does it, prints what was done and sets `exit_code`, which must live as long as `app`: 0 done, 1 libvirt or the host
/// refused, 2 wrong use, or a domain that cannot have it.
void add_virt(Command& app, int& exit_code);

}  // namespace vmm::tool
