#pragma once
#include "exec/platform.hpp"
#include "exec/vector_state.hpp"

namespace vpmu::exec::test {

/// Has vector registers, which the guest has enabled in XCR0, and nothing else.
class VectorPlatform final : public NoPlatform {
 public:
  VectorPlatform() { state.xcr0 = 7; }
  VectorState* vectors() override { return &state; }
  VectorState state;
};

}  // namespace vpmu::exec::test
