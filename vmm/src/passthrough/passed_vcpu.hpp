#pragma once
#include "vcpu/backend.hpp"
#include "vcpu/guest_vcpu.hpp"

namespace vmm {

/// A vCPU whose PMU is KVM's own: none of its accesses exits to us.
class PassedVcpu final : public GuestVcpu {
 public:
  /// `backend` must outlive the result.
  explicit PassedVcpu(VcpuBackend& backend) : backend_{&backend} {}
  Result<Exit> run() override { return backend_->run(); }
  Result<Bytes> save() override { return no_snapshot(); }
  Result<void> restore(std::span<const std::byte> /*image*/) override { return no_snapshot(); }
  void visit_statistics(const std::function<void(std::string_view, std::uint64_t)>& visit) const override {
    backend_->visit_statistics(visit);
  }

 private:
  static Failure no_snapshot() {
    return usage_error("a machine whose PMU is KVM's own cannot be saved or restored",
                       "give another --source than kvm");
  }
  VcpuBackend* backend_;
};

}  // namespace vmm
