#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "sources/instruction.hpp"

namespace vmm {

/// The instruction in Intel's notation, with its bytes; for messages.
std::string disassemble(std::span<const std::byte> bytes, CodeSize size);

/// Status flags that the manual leaves undefined after the instruction, for one or another of its operands' values. SDM volume 2,
/// "Flags Affected" of each.
std::uint64_t undefined_flags(std::span<const std::byte> bytes, CodeSize size);

}  // namespace vmm
