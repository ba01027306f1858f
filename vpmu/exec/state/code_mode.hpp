#pragma once
#include <cstdint>

namespace vpmu::exec {

/// How long operands and addresses are where no prefix says otherwise. SDM 1 3.6.1.
enum class CodeMode : std::uint8_t { bits64, bits32, bits16 };

}  // namespace vpmu::exec
