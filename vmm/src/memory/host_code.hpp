#pragma once
#include <cstddef>
#include <span>

#include "exec/platform.hpp"
#include "kvm/fd.hpp"

namespace vmm {

/// Executable memory for one instruction engine: pages of a memory file, mapped once, to run. Nothing in this process
/// can write to them by an address, at no time: code is written to the file. Nor can mprotect() make the mapping
/// writable where the host has /proc, nor anybody resize the file. Unmapped pages stand before and after it.
///
/// Where the host refuses, add() gives null for ever, and the engine leaves what needs it to others.
class MappedHostCode final : public vpmu::exec::HostCode {
 public:
  static constexpr std::size_t bytes = 32U << 20U;

  /// Makes the file and maps it: later, in a jail, that may be forbidden. Takes address space, and memory as code is
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
