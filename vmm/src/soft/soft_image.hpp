#pragma once
#include <span>

#include "snapshot/byte_stream.hpp"
#include "soft/debug_unit.hpp"
#include "soft/soft_core.hpp"

namespace vmm {

/// The whole state of a vCPU without KVM as bytes, while no exit is pending. Without decoded code, translations,
/// statistics and its users' timers.
[[nodiscard]] Bytes save_image(const SoftCore& core, const DebugUnit& debug);
/// The reverse. Fails with kind usage if the bytes do not have this form, describe an impossible state, or features
/// that the vCPU lacks; it must not run then.
Result<void> restore_image(SoftCore& core, DebugUnit& debug, std::span<const std::byte> image);

}  // namespace vmm
