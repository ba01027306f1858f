#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kvm/vcpu.hpp"
#include "kvm/vm.hpp"
#include "snapshot/byte_stream.hpp"
#include "support/result.hpp"

namespace vmm {

/// All that KVM holds of a vCPU between two runs, as bytes: registers, MSRs (those of `saved_msrs`,
/// System::saved_msrs), local APIC, events, TSC. On the vCPU's thread.
Result<Bytes> save_vcpu(Vcpu& vcpu, std::span<const std::uint32_t> saved_msrs);

/// The reverse, on a vCPU that has its CPUID and has not run. The guest's TSC continues as if no time had passed until
/// `moment` of the host's; if KVM tells TSC offsets (Linux 5.16), the TSCs of several vCPUs keep their differences.
/// Fails with kind usage if the bytes do not have this form, kind host if KVM refuses, or if the TSC has another rate
/// here.
Result<void> restore_vcpu(Vcpu& vcpu, std::span<const std::byte> image, std::uint64_t moment);

/// The interrupt controllers and the timer that KVM emulates for the whole VM.
Result<Bytes> save_chips(const Vm& vm);
Result<void> restore_chips(Vm& vm, std::span<const std::byte> image);

}  // namespace vmm
