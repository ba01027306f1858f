#pragma once
#include <linux/kvm.h>

#include <mutex>
#include <vector>

#include "devices/device_wires.hpp"
#include "kvm/vm.hpp"

namespace vmm {

/// The wires of a machine on KVM: irqfd, ioeventfd and message-signalled interrupts. KVM API 4.59, 4.52, 4.75.
class KvmWires final : public DeviceWires {
 public:
  /// The VM must outlive it.
  explicit KvmWires(Vm& vm);

  Result<void> send(const InterruptMessage& message) override;
  Result<void> wire_interrupt(const Fd& event, const std::optional<InterruptMessage>& wanted) override;
  Result<void> wire_store(vpmu::GuestPhysical at, const Fd& event, Wire wire) override;

 private:
  /// A GSI above the chips' lines, assigned to one event for good.
  struct Line {
    int event;
    bool attached{};
    InterruptMessage message{};
  };
  Result<void> set_routes();

  Vm* vm_;
  std::mutex mutex_;
  std::vector<Line> lines_;  ///< Guarded by mutex_; index i has GSI first_line + i.
};

}  // namespace vmm
