#pragma once
#include <chrono>
#include <string>

namespace vmm::tool {

/// Lines on standard error about what takes more than two seconds.
class Progress {
 public:
  enum class Voice { quiet, aloud };
  Progress(std::string name, Voice voice) : name_{std::move(name)}, voice_{voice} {}
  /// What is done from now on.
  void begin(std::string what);
  /// To be called now and then while it is done; `detail` says how far it has come, and may be empty.
  void tick(const std::string& detail = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  Voice voice_;
  std::string what_;
  Clock::time_point begun_, next_;
};

}  // namespace vmm::tool
