#pragma once
#include <optional>

#include "kvm/exit.hpp"
#include "processor/system_result.hpp"

namespace vmm {

/// The instruction of an exit, which waits for the VMM's answer. The exit refers to it: it must not move meanwhile.
struct PendingExit {
  enum class Kind : std::uint8_t {
    none,
    read,  ///< RDMSR or RDPMC: EDX:EAX get the data.
    wrmsr,
    port
  } kind{};
  std::uint8_t length{};
  unsigned long long data{};
  std::uint8_t gp{};
  PortAccess access{};
  std::uint32_t port_data{};
  std::uint64_t hits{};  ///< Bits of DR6: #DB after it.

  [[nodiscard]] bool waits() const { return kind != Kind::none; }
  /// Becomes that of an instruction of `bytes`: the exit that its result makes. Empty, and nothing waits, if it makes
  /// none. `counter`: the one that RDPMC reads.
  std::optional<Exit> begin(const SystemResult& result, std::uint8_t bytes, std::uint32_t counter);
};

}  // namespace vmm
