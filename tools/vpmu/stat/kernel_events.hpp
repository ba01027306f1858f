#pragma once
#include <optional>
#include <span>
#include <string_view>

#include "vpmu/generation.hpp"

namespace vmm::tool {

/// An event that a guest's Linux has a name of its own for, and what it programs for that name.
struct KernelEvent {
  std::string_view name;  ///< As `perf list` has it: "L1-dcache-loads".
  std::uint8_t code{}, umask{}, cmask{};
  bool inv{};
  std::uint64_t offcore{};  ///< MSR_OFFCORE_RSP_0.
};

/// All that Linux names on the generation's CPUs: generic hardware events, caches, and the names in sysfs.
std::span<const KernelEvent> kernel_events(vpmu::Generation generation);

/// The event as a row of the generation's table would have it; the name is that of the KernelEvent.
vpmu::EventDesc row_of(const KernelEvent& event, const vpmu::GenerationDesc& generation);

/// The event of that name in any spelling that perf takes: "L1-dcache-loads", "l1d-read". Empty: Linux has no such
/// event on this generation.
std::optional<KernelEvent> find_kernel_event(const vpmu::GenerationDesc& generation, std::string_view name);

/// Code, umask and conditions as perf's raw events ("r01000c0") and terms ("cpu/event=0xc0,umask=1/") give them. Empty
/// for other forms, and for terms that are not known.
std::optional<vpmu::EventDesc> read_select(const vpmu::GenerationDesc& generation, std::string_view text);

}  // namespace vmm::tool
