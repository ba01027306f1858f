#pragma once
#include "vcpu/guest_vcpu.hpp"
#include "vcpu/port.hpp"

namespace vmm {

/// A vCPU whose PMU is KVM's own: none of its accesses exits to us.
class PassedVcpu final : public GuestVcpu {
 public:
  /// `port` must outlive the result.
  explicit PassedVcpu(VcpuPort& port) : port_{&port} {}
  Result<Exit> run() override { return port_->run(); }
  Result<Bytes> save() override { return no_snapshot(); }
  Result<void> restore(std::span<const std::byte> /*image*/) override { return no_snapshot(); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override {
    port_->visit_statistics(visit);
  }

 private:
  static Failure no_snapshot() {
    return usage_error("a machine whose PMU is KVM's own cannot be saved or restored",
                       "give another --source than kvm");
  }
  VcpuPort* port_;
};

}  // namespace vmm
