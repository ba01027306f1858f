#pragma once
#include <optional>
#include <span>

#include "decode/instruction.hpp"
#include "soft/soft_core.hpp"

/// Which exception an instruction raises that the engine has left, or that must be checked before it runs.
namespace vmm {

inline constexpr Exception undefined_opcode{.vector = x86::vector::UD, .error_code = std::nullopt};

/// The conditions of #UD and #NM that do not depend on operands. SDM 2A tables 2-15 to 2-28, SDM 3A 2.5, 13.1.
[[nodiscard]] std::optional<Exception> feature_fault(const SoftCore& core, const Instruction& i,
                                                     std::span<const std::byte> code);
/// What a program's instruction raises while checks_accesses(), and that it does not otherwise; and feature_fault().
/// The rest is found as it runs.
[[nodiscard]] std::optional<Exception> checked_fault(const SoftCore& core, const Instruction& i,
                                                     std::span<const std::byte> code);
/// The fault of fetching an instruction's byte, with CR2 set.
[[nodiscard]] Exception fetch_fault(SoftCore& core, std::uint64_t at);

}  // namespace vmm
