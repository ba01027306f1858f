#pragma once
#include "vcpu/guest_vcpu.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// A vCPU whose PMU is KVM's own: nothing of it comes to us.
class PassedVcpu final : public GuestVcpu {
 public:
  /// `port` must outlive the result.
  explicit PassedVcpu(VcpuPort& port) : port_{&port} {}
  Result<Exit> run() override { return port_->run(); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override { port_->visit_statistics(visit); }

 private:
  VcpuPort* port_;
};

}  // namespace vmm
