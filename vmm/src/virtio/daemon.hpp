#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvm/fd.hpp"
#include "support/result.hpp"
#include "virtio/last_lines.hpp"

namespace vmm::virtio {

/// How to start a program.
struct DaemonLaunch {
  /// What the program sees and may do, within its user's rights.
  enum class Surroundings {
    as_here,
    /// Its own mount, network and IPC namespaces where the host allows them. For a user other than root, in a user
    /// namespace that has no user but this one, as root.
    apart,
    /// As `apart`, or fails; and the program can write to no file system: every mount is read-only.
    apart_read_only,
  };
  std::string name;                    ///< For messages.
  std::vector<std::string> arguments;  ///< The program's path first.
  Fd keeps{};                          ///< The program gets this descriptor as number kept_descriptor.
  Surroundings surroundings{Surroundings::as_here};
  bool refuses_setuid_bits{};  ///< refuse_setuid_bits().
};

/// A program that serves this process, in a session of its own: Ctrl-C on the terminal does not reach it. A child
/// process, its supervisor, looks after it, because this process may not signal or wait for others once it is in the
/// jail. The supervisor ends and reaps the program when this object is destroyed, or when this process ends for
/// whatever reason.
class Daemon {
 public:
  static constexpr int kept_descriptor = 3;

  /// Forks; call it before the process starts its threads or enters the jail. Fails if the program cannot be executed,
  /// or its surroundings cannot be set up.
  static Result<Daemon> start(DaemonLaunch launch);
  Daemon(Daemon&&) = default;
  Daemon& operator=(Daemon&&) = delete;
  /// As end().
  ~Daemon() { end(); }

  /// The program is expected to end when its connection has closed. Waits for that, then sends SIGTERM, then SIGKILL:
  /// takes seconds at most. Idempotent.
  void end();

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] pid_t process() const { return process_; }
  [[nodiscard]] const std::shared_ptr<LastLines>& messages() const { return messages_; }

 private:
  Daemon(std::string name, Fd lifeline, pid_t process, std::shared_ptr<LastLines> messages)
      : name_{std::move(name)}, lifeline_{std::move(lifeline)}, process_{process}, messages_{std::move(messages)} {}

  std::string name_;
  Fd lifeline_;  ///< A socket to the supervisor. Closing this end makes the supervisor end the program; the supervisor
                 ///< closes its end after that.
  pid_t process_;
  std::shared_ptr<LastLines> messages_;
};

/// The output of a program until it ends, which tells its version. Fails if it cannot be executed, or does not end in
/// time.
Result<std::string> said_by(const std::vector<std::string>& arguments, std::chrono::milliseconds patience);

}  // namespace vmm::virtio
