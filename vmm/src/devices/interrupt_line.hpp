#pragma once

namespace vmm {

enum class LineLevel { low, high };

/// One wire into the interrupt controllers, as a device sees it. Thread-safe.
class InterruptLine {
 public:
  virtual ~InterruptLine() = default;
  virtual void set(LineLevel level) = 0;
};

}  // namespace vmm
