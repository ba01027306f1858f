#pragma once
#include <chrono>
#include <string>

namespace vmm::tool {

/// Progress lines on standard error, for steps that take more than two seconds.
class Progress {
 public:
  enum class Voice { quiet, aloud };
  Progress(std::string name, Voice voice) : name_{std::move(name)}, voice_{voice} {}
  /// Names the step that begins now.
  void begin(std::string what);
  /// To be called now and then during the step; `detail` says how far it is, and may be empty.
  void tick(const std::string& detail = {});

 private:
  using Clock = std::chrono::steady_clock;
  std::string name_;
  Voice voice_;
  std::string what_;
  Clock::time_point begun_, next_;
};

}  // namespace vmm::tool
