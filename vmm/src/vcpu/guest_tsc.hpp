#pragma once
#include <cstdint>

#include "support/log.hpp"
#include "vcpu/backend.hpp"

namespace vmm {

/// The guest's TSC for users without an error path: records and the uncore. If the back end cannot read it, returns the
/// last value that was read; this is counted, and logged once. So it never falls back to 0 or below an earlier value.
class GuestTsc {
 public:
  GuestTsc(VcpuBackend& backend, Log& log) : backend_{&backend}, log_{&log} {}

  [[nodiscard]] std::uint64_t read() {
    const auto now = backend_->tsc();
    if (now) return last_ = *now;
    ++unread_;
    log_->once(LogLevel::warning, "tsc",
               "the guest's TSC cannot be read: {}; records show the last value that was read (pmu.tsc.unread)",
               describe(now.error()));
    return last_;
  }
  /// Times that it could not be read.
  [[nodiscard]] std::uint64_t unread() const { return unread_; }

 private:
  VcpuBackend* backend_;
  Log* log_;
  std::uint64_t last_{};
  std::uint64_t unread_{};
};

}  // namespace vmm
