#pragma once
#include "exec/vector_state.hpp"
#include "kvm/vcpu.hpp"

namespace vmm {

/// The vector state in what KVM_GET_XSAVE gives: XSAVE's standard format. A component that XSTATE_BV does not name is
/// as after a reset. SDM 1 13.4, 13.6.
vpmu::exec::VectorState vector_state(const XsaveArea& area, std::uint64_t xcr0);

/// Puts it back, with all that `area` holds besides. The upper halves only where XCR0 has AVX: KVM refuses components
/// that the vCPU lacks.
void set_vector_state(XsaveArea& area, const vpmu::exec::VectorState& state);

}  // namespace vmm
