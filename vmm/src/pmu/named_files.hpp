#pragma once
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>

#include "vpmu/address.hpp"
#include "vpmu/retirement.hpp"

namespace vmm {

/// Names of files, as programs have given them to open and openat for reading alone, openat2, execve and execveat.
struct FileNames {
  static constexpr std::size_t max_names = 1U << 16U, max_length = 4096;
  std::set<std::string> names{};  ///< Absolute, or relative to the directory of whoever has called.
  std::uint64_t lost{};           ///< Not read, relative to another directory, or one name too many.

  /// Adds it, or counts it as lost.
  void add(std::string name);
  void merge(FileNames& from);
};

/// Finds these names in the system calls of one vCPU. Linux's calls for x86-64.
class NamedFiles {
 public:
  /// Reads memory as the program would. False: it cannot now.
  using Read = std::function<bool(vpmu::GuestLinear at, std::span<std::byte> out)>;
  explicit NamedFiles(Read read) : read_{std::move(read)} {}

  /// The task that runs has made a system call, and has these registers.
  void called(const vpmu::PebsRegisters& registers);
  /// Another task runs from here on.
  void switched();
  [[nodiscard]] FileNames& names() { return names_; }

 private:
  bool read_name(std::uint64_t at);

  Read read_;
  /// A name in memory that the program has not touched itself: it can be read when its kernel has. 0: there is none.
  std::uint64_t unread_{};
  FileNames names_;
};

}  // namespace vmm
