#pragma once
#include <Zydis/Zydis.h>

#include <optional>

#include "exec/core.hpp"
#include "exec/cpu_feature.hpp"

/// What the engine's decoder and others need to know of instructions as Zydis gives them.
namespace vpmu::exec {

const ZydisDecoder& zydis_decoder(CodeMode mode = CodeMode::bits64);

/// `target`: its first operand. BranchKind::none: it is no branch.
BranchKind branch_kind(const ZydisDecodedInstruction& in, const ZydisDecodedOperand& target);

/// The sizes of what a gather of AVX2 works on, in bytes: 4 or 8.
struct GatherElements {
  std::uint8_t index, data;
};
/// Empty: it is no such gather.
std::optional<GatherElements> gather_elements(ZydisMnemonic mnemonic);

/// The feature that the host must have to run the instruction itself; empty: it is of no set that may run so.
std::optional<CpuFeature> host_feature(const ZydisDecodedInstruction& in);

}  // namespace vpmu::exec
