#pragma once
#include <cstddef>
#include <span>

#include "exec/state/platform.hpp"
#include "kvm/fd.hpp"

namespace vmm {

/// Executable memory for one instruction engine: pages of a memory file, mapped once, as executable. This process never
/// has a writable mapping of them: code is written to the file. If the host has /proc, mprotect() cannot make the
/// mapping writable; nobody can resize the file. Guard pages precede and follow it.
///
/// If the host refuses, add() always returns null, and the engine leaves what needs such code to its caller.
class MappedHostCode final : public vpmu::exec::HostCode {
 public:
  static constexpr std::size_t bytes = 96U << 20U;

  /// Makes the file and maps it, as that may be forbidden later, in a jail. Takes address space, and memory as code is
  /// added.
  MappedHostCode();
  MappedHostCode(const MappedHostCode&) = delete;
  MappedHostCode& operator=(const MappedHostCode&) = delete;
  MappedHostCode(MappedHostCode&&) = delete;
  MappedHostCode& operator=(MappedHostCode&&) = delete;
  ~MappedHostCode() override;

  /// One system call, pwrite().
  const std::byte* add(std::span<const std::byte> routine) override;
  /// One system call, pwrite(). False also where nothing was added.
  bool change(const std::byte* at, std::uint32_t to) override;
  void clear() override { used_ = 0; }

 private:
  Fd file_;
  std::byte* reserved_{};  ///< The mapping between two guards.
  std::byte* to_run_{};
  std::size_t used_{};
};

}  // namespace vmm
