#pragma once

namespace vmm::tool {

class Command;

/// Adds `vpmu doctor` to the command line: what this host can do, one finding a line, each with its reason and advice.
/// Parsing sets `exit_code`, which must live as long as `app`: 0 guests run here, 1 they do not, or with --kvm not
/// on KVM. With --selftest it runs the guest tests, too (selftest.hpp).
void add_doctor(Command& app, int& exit_code);

}  // namespace vmm::tool
