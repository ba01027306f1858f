#include <cstdio>
#include <memory>
#include <string>

#include "control/session.hpp"
#include "lockstep/lockstep_source.hpp"
#include "pmu/registry.hpp"

/// Runs a Linux guest on KVM, whose instructions the engine has to do alike:
///
///     vmm_lockstep_guest KERNEL INITRD COMMAND_LINE CONTROL
///
/// Serves its counters at the Unix socket CONTROL, as `vpmu run --control` does. Exit code 0 when it was stopped there;
/// 1 on a difference, which it names, and when the guest ended by itself.
namespace {

using namespace vmm;

Result<std::unique_ptr<CountSource>> make_lockstep(const SourceParts& parts) {
  VMM_ASSIGN(auto timer, parts.services.make_timer());
  return std::make_unique<LockstepSource>(std::move(timer), parts.breakpoints, parts.view, parts.memory,
                                          parts.generation, parts.seed);
}

int run(const std::string& kernel, const std::string& initrd, const std::string& command_line,
        const std::string& control) {
  const MachineConfig config{.kernel = kernel,
                             .initrd = initrd,
                             .command_line = command_line,
                             .memory_bytes = 512ULL << 20U,
                             .source = "step",
                             .source_options = {.instead = make_lockstep},
                             .accel = Accel::kvm};
  Log log;
  const auto end = run_session(config, {.control_path = control}, log);
  if (!end || end->failure) {
    std::fprintf(stderr, "lockstep_guest: %s\n", describe(end ? *end->failure : end.error()).c_str());
    return 1;
  }
  return end->reason == StopReason::user ? 0 : 1;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fputs("usage: vmm_lockstep_guest KERNEL INITRD COMMAND_LINE CONTROL\n", stderr);
    return 2;
  }
  return run(arguments[1], arguments[2], arguments[3], arguments[4]);
}
