#pragma once
#include <cstddef>
#include <span>

#include "exec/platform.hpp"

namespace vmm {

/// Executable memory for one instruction engine: the same pages twice, to write and to run. Never both at one address. Where the host
/// refuses, add() gives null for ever, and the engine leaves what needs it to others.
class MappedHostCode final : public vpmu::exec::HostCode {
 public:
  static constexpr std::size_t bytes = 32U << 20U;

  /// Maps at the first add().
  MappedHostCode() = default;
  MappedHostCode(const MappedHostCode&) = delete;
  MappedHostCode& operator=(const MappedHostCode&) = delete;
  MappedHostCode(MappedHostCode&&) = delete;
  MappedHostCode& operator=(MappedHostCode&&) = delete;
  ~MappedHostCode() override;

  const std::byte* add(std::span<const std::byte> routine) override;
  void clear() override { used_ = 0; }

 private:
  bool map();

  std::byte* to_write_{};
  std::byte* to_run_{};
  std::size_t used_{};
  bool tried_{};
};

}  // namespace vmm
