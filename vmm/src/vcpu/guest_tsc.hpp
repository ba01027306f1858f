#pragma once
#include <cstdint>

#include "support/log.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// The guest's TSC for users without an error path: records and the uncore. If the port cannot read it, returns the
/// last value that was read; this is counted, and logged once. So it never falls back to 0 or below an earlier value.
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
