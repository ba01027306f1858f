#pragma once
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "kvm/fd.hpp"
#include "support/result.hpp"
#include "virtio/last_lines.hpp"

namespace vmm::virtio {

/// What a program is started with.
struct DaemonLaunch {
  /// What it sees and may do, beside what its user may.
  enum class Surroundings {
    as_here,
    /// Mounts, a network and IPC of its own, where the host lets us; with a user that is not root in a user namespace,
    /// where the program is root and nobody else is anybody.
    apart,
    /// As `apart`, always, and no file system can be written to, whatever the program does: every mount is read-only.
    apart_read_only,
  };
  std::string name;                    ///< For messages.
  std::vector<std::string> arguments;  ///< The program's path first.
  Fd keeps{};                          ///< The program has this descriptor, as number kept_descriptor.
  Surroundings surroundings{Surroundings::as_here};
};

/// A program that serves this process, in a session of its own: Ctrl-C of the terminal does not reach it. A child of
/// ours that does nothing else looks after it, because this process, once it is in jail, may signal and wait for
/// nobody: it ends the program when this object goes, or this process, however that ends, and reaps it.
class Daemon {
 public:
  static constexpr int kept_descriptor = 3;

  /// Forks; to be called before the process starts its threads or goes to jail. Fails where the program cannot be
  /// executed, or its surroundings be made.
  static Result<Daemon> start(DaemonLaunch launch);
  Daemon(Daemon&&) = default;
  Daemon& operator=(Daemon&&) = delete;
  /// As end().
  ~Daemon() { end(); }

  /// Waits for it to end by itself, having closed its connection, then asks it to (SIGTERM), then ends it (SIGKILL):
  /// within seconds. Idempotent.
  void end();

  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] pid_t process() const { return process_; }
  [[nodiscard]] const std::shared_ptr<LastLines>& messages() const { return messages_; }

 private:
  Daemon(std::string name, Fd lifeline, pid_t process, std::shared_ptr<LastLines> messages)
      : name_{std::move(name)}, lifeline_{std::move(lifeline)}, process_{process}, messages_{std::move(messages)} {}

  std::string name_;
  Fd lifeline_;  ///< A socket to the one who looks after it. Who closes it ends the daemon; it is closed when all is
                 ///< over.
  pid_t process_;
  std::shared_ptr<LastLines> messages_;
};

/// All that a program says until it ends, by which versions are told apart. Fails where it cannot be run, or does not
/// end in time.
Result<std::string> said_by(const std::vector<std::string>& arguments, std::chrono::milliseconds patience);

}  // namespace vmm::virtio
