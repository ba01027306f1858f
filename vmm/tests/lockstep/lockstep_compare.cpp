#include "lockstep/lockstep_compare.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::exec::CpuState;
using vpmu::exec::VectorState;

constexpr std::array names{"RAX", "RCX", "RDX", "RBX", "RSP", "RBP", "RSI", "RDI",
                           "R8",  "R9",  "R10", "R11", "R12", "R13", "R14", "R15"};
/// What FXSAVE does not use. SDM 1 table 10-2.
constexpr std::size_t fxsave_unused_at = 416;

/// The first aligned word in which two areas differ.
std::optional<Difference> word_difference(const char* area, std::span<const std::byte> ours,
                                          std::span<const std::byte> theirs) {
  for (std::size_t at = 0; at < ours.size(); at += sizeof(std::uint64_t)) {
    Difference d;
    std::memcpy(&d.ours, ours.data() + at, sizeof d.ours);
    std::memcpy(&d.theirs, theirs.data() + at, sizeof d.theirs);
    if (d.ours == d.theirs) continue;
    d.what = fmt::format("{} + {}", area, at);
    return d;
  }
  return std::nullopt;
}

}  // namespace

std::optional<Difference> register_difference(const CpuState& ours, const CpuState& theirs, std::uint64_t undefined,
                                              std::uint64_t uncompared) {
  if (ours.rip != theirs.rip) return Difference{"RIP", ours.rip, theirs.rip};
  for (unsigned n = 0; n < names.size(); ++n)
    if (((ours.gpr[n] ^ theirs.gpr[n]) & ~uncompared) != 0) return Difference{names[n], ours.gpr[n], theirs.gpr[n]};
  if (((ours.rflags ^ theirs.rflags) & ~(undefined | x86::rflags::TF::mask | x86::rflags::RF::mask)) != 0)
    return Difference{"RFLAGS", ours.rflags, theirs.rflags};
  if (ours.fs_base != theirs.fs_base) return Difference{"FS base", ours.fs_base, theirs.fs_base};
  if (ours.gs_base != theirs.gs_base) return Difference{"GS base", ours.gs_base, theirs.gs_base};
  return std::nullopt;
}

std::optional<Difference> vector_difference(const VectorState& ours, const VectorState& theirs) {
  if (auto d = word_difference("FXSAVE area", std::span{ours.legacy}.first(fxsave_unused_at),
                               std::span{theirs.legacy}.first(fxsave_unused_at)))
    return d;
  return word_difference("upper halves of YMM", std::as_bytes(std::span{ours.upper}),
                         std::as_bytes(std::span{theirs.upper}));
}

std::optional<Difference> memory_difference(OverlayRam& ram) {
  const auto at = ram.difference();
  if (!at) return std::nullopt;
  return Difference{fmt::format("memory at {:#x}", at->value()), ram.read_word(*at, 8).value_or(0), ram.in_guest(*at)};
}

std::uint64_t uncompared_bits(const Instruction& i) {
  constexpr std::uint64_t mce = vpmu::bit(6);
  return i.is(SystemOp::read_control) && i.system->special == 4 ? mce : 0;
}

bool stores_what_may_differ(const Instruction& i) {
  constexpr std::array with_pointers{"fxsave", "fxsave64", "fnsave", "fnstenv"};
  return i.mnemonic.starts_with("xsave") || std::ranges::find(with_pointers, i.mnemonic) != with_pointers.end();
}

}  // namespace vmm
