#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control/bounded_writer.hpp"
#include "control/session.hpp"
#include "files/output_file.hpp"
#include "files/whole_file.hpp"
#include "jail/broker.hpp"
#include "jail/jail.hpp"
#include "machine/automatic.hpp"
#include "machine/config.hpp"
#include "shared/policy_options.hpp"

namespace vmm::tool {

class Command;

/// The options of a machine that `vpmu run` and `vpmu exec` share.
struct MachineOptions {
  MachineConfig machine;
  PolicyArguments policies;
  std::string memory{"256M"};
  std::string accel{"auto"};
  std::string events{"all"};
  std::string time{"instructions"};  ///< Or "pipeline", or "auto".
  std::vector<std::string> set;      ///< "l3=16M,dram=240", each a list.
  std::optional<std::string> schedule;
  std::string stats;
  double timeout{};
  std::string user;
  bool no_jail{};
  bool verbose{};
  std::string uncounted{
      "warn"};                ///< What becomes of events that the guest has counted and the source does not deliver.
  bool counts_one_command{};  ///< Then a source that is left open is never the clock, which only estimates.
};

/// What --source takes: auto, the sources that count, and KVM's own PMU.
std::vector<std::string> source_choices();

/// As --time has it.
std::string_view name_of(TimeModel time);

/// Adds the shared options, except those whose values come from a libvirt domain or a snapshot.
void add_machine_options(Command& command, const std::shared_ptr<MachineOptions>& options);

/// What is said of such events at the end: "warn" prints a line to standard error, "error" is a failure, too. Empty:
/// there are none, or nothing is to be said.
std::optional<Error> uncounted_events(const MachineOptions& options, const MachineStatistics& statistics);

/// Lines for standard error, from any thread: no vCPU waits for a slow reader.
class Messages {
 public:
  Messages();
  void print(const std::string& line) { writer_.put(line + end_); }
  /// A log for the machine's own messages. It must not outlive this object.
  [[nodiscard]] Log log(bool verbose);

 private:
  const char* end_;
  BoundedWriter writer_;
};

/// Settles memory, policies, events, accelerator and source. Returns the choices.
Result<Chosen> choose_automatic(MachineOptions& options);

/// A file to write; none without a path.
Result<std::optional<OutputFile>> open_output(const std::string& path, const std::string& what,
                                              const std::string& option);

/// The machine's jail, and the broker, which acts for it outside. Neither exists without the jail.
struct Confinement {
  std::unique_ptr<Jail> jail;
  Broker broker;

  Result<void> write(OutputFile& statistics, const std::string& text) {
    return jail ? broker.write_statistics(text) : statistics.replace(text);
  }
  Result<void> finish(WholeFile& snapshot) { return jail ? broker.finish_snapshot() : snapshot.finish(); }
};

/// What the machine can no longer reach once it is in the jail. All must outlive the session.
struct OutsideFiles {
  const std::string& socket;  ///< A path that is removed at the end; may be empty.
  std::optional<OutputFile>& statistics;
  std::optional<WholeFile>& snapshot;
};

/// Whether daemons are devices of the machine.
enum class Daemons : std::uint8_t { none, devices };

/// The jail's functions for a session; none with --no-jail. `confinement` must outlive the session.
Result<SessionOptions::Confinement> confine(Confinement& confinement, const MachineOptions& options, Daemons daemons,
                                            const OutsideFiles& files, Log& log);

}  // namespace vmm::tool
