#pragma once
#include <Zydis/Zydis.h>

#include <optional>

#include "exec/core.hpp"
#include "exec/cpu_feature.hpp"

/// For those who know Zydis.
namespace vpmu::exec {

const ZydisDecoder& zydis_decoder(CodeMode mode = CodeMode::bits64);

/// What the host must have for an instruction that may be run as its own; empty: it is of no set that may.
std::optional<CpuFeature> host_feature(const ZydisDecodedInstruction& in);

}  // namespace vpmu::exec
