#include "pmu/named_files.hpp"

#include <fcntl.h>
#include <sys/syscall.h>

#include <array>
#include <optional>
#include <utility>

namespace vmm {
namespace {

using vpmu::Slot;

/// Where a call has its name, and what that is relative to.
struct Call {
  std::uint64_t number;
  Slot name;
  std::optional<Slot> flags;  ///< O_*.
  bool has_directory;         ///< In RDI.
};
constexpr std::array calls{Call{SYS_open, Slot::rdi, Slot::rsi, false}, Call{SYS_openat, Slot::rsi, Slot::rdx, true},
                           Call{SYS_openat2, Slot::rsi, {}, true}, Call{SYS_execve, Slot::rdi, {}, false},
                           Call{SYS_execveat, Slot::rsi, {}, true}};

}  // namespace

void FileNames::add(std::string name) {
  if (names.size() < max_names || names.contains(name))
    names.insert(std::move(name));
  else
    ++lost;
}

void FileNames::merge(FileNames& from) {
  lost += std::exchange(from.lost, 0);
  for (const std::string& name : std::exchange(from.names, {})) add(name);
}

bool NamedFiles::read_name(std::uint64_t at) {
  std::string name;
  std::array<std::byte, 1> byte{};
  while (name.size() < FileNames::max_length) {
    if (!read_(vpmu::GuestLinear{at + name.size()}, byte)) return false;
    if (byte[0] == std::byte{0}) break;
    name.push_back(static_cast<char>(byte[0]));
  }
  if (!name.empty()) names_.add(std::move(name));
  return true;
}

void NamedFiles::called(const vpmu::PebsRegisters& registers) {
  if (const std::uint64_t unread = std::exchange(unread_, 0); unread != 0 && !read_name(unread)) ++names_.lost;
  for (const Call& call : calls) {
    if (registers[Slot::rax] != call.number) continue;
    if (call.flags && (registers[*call.flags] & O_ACCMODE) != O_RDONLY) continue;
    const std::uint64_t at = registers[call.name];
    std::array<std::byte, 1> first{};
    const bool is_readable = read_(vpmu::GuestLinear{at}, first);
    const bool is_absolute = is_readable && first[0] == std::byte{'/'};
    if (call.has_directory && is_readable && !is_absolute &&
        static_cast<std::int32_t>(registers[Slot::rdi]) != AT_FDCWD)
      ++names_.lost;
    else if (!is_readable || !read_name(at))
      unread_ = at;
  }
}

void NamedFiles::switched() {
  if (std::exchange(unread_, 0) != 0) ++names_.lost;
}

}  // namespace vmm
