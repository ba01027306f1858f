#pragma once
#include <cstdint>

#include "support/log.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// The guest's TSC for those who cannot fail: records and the uncore. Where the port cannot read it, it stands at what
/// was read last, which is counted and told once. Never 0 after a time stamp, and never lower than before.
class GuestTsc {
 public:
  GuestTsc(VcpuPort& port, Log& log) : port_{&port}, log_{&log} {}

  [[nodiscard]] std::uint64_t read() {
    const auto now = port_->tsc();
    if (now) return last_ = *now;
    ++unread_;
    if (log_->first_time("tsc"))
      log_->warning("the guest's TSC cannot be read: {}; records show the last value that was read (pmu.tsc.unread)",
                    describe(now.error()));
    return last_;
  }
  /// Times that it could not be read.
  [[nodiscard]] std::uint64_t unread() const { return unread_; }

 private:
  VcpuPort* port_;
  Log* log_;
  std::uint64_t last_{};
  std::uint64_t unread_{};
};

}  // namespace vmm
