#pragma once
#include "exec/state/vector_state.hpp"
#include "kvm/vcpu.hpp"

namespace vmm {

/// The vector state in the result of KVM_GET_XSAVE, which is in XSAVE's standard format. A component that XSTATE_BV
/// does not name is in its reset state. SDM 1 13.4, 13.6.
vpmu::exec::VectorState vector_state(const XsaveArea& area, std::uint64_t xcr0);

/// The reverse; keeps all else that `area` holds. Sets the upper halves only if XCR0 has AVX: KVM refuses components
/// that the vCPU lacks.
void set_vector_state(XsaveArea& area, const vpmu::exec::VectorState& state);

}  // namespace vmm
