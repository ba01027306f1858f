#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "kvm/exit.hpp"
#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"

namespace vmm {

/// A vCPU together with its PMU, as a machine's thread runs it. Made, used and destroyed on that thread.
class GuestVcpu {
 public:
  virtual ~GuestVcpu() = default;
  /// Runs until an exit that is not the PMU's. Returns Interrupted after each kick, so that the caller can check for
  /// requests.
  virtual Result<Exit> run() = 0;
  /// The PMU's part of a snapshot, taken between two runs; restore() is called before the first run. Fails with kind
  /// usage if that is not possible.
  virtual Result<Bytes> save() = 0;
  virtual Result<void> restore(std::span<const std::byte> image) = 0;
  /// Calls `visit(name, value)` for every statistic of this vCPU, in a fixed order.
  virtual void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const = 0;
};

}  // namespace vmm
