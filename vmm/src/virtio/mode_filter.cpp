#include "virtio/mode_filter.hpp"

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace vmm::virtio {
namespace {

/// A call that sets a file's mode, and where the mode is among its arguments. `flags`: of open(), whose mode counts
/// only if it makes a file; -1 for others.
struct ModeCall {
  std::uint32_t number;
  int mode, flags;
};
constexpr std::uint32_t fchmodat2 = 452;  // Linux 6.6; newer than some C libraries
constexpr std::array calls{ModeCall{SYS_chmod, 1, -1}, ModeCall{SYS_fchmod, 1, -1}, ModeCall{SYS_fchmodat, 2, -1},
                           ModeCall{fchmodat2, 2, -1}, ModeCall{SYS_mknod, 1, -1},  ModeCall{SYS_mknodat, 2, -1},
                           ModeCall{SYS_creat, 1, -1}, ModeCall{SYS_open, 2, 1},    ModeCall{SYS_openat, 3, 2}};

constexpr sock_filter load(std::size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<std::uint32_t>(offset));
}
/// The low half of an argument: modes and flags have 32 bits.
constexpr sock_filter load_argument(int number) {
  return load(offsetof(seccomp_data, args) + sizeof(std::uint64_t) * static_cast<std::size_t>(number));
}
constexpr sock_filter answer(std::uint32_t action) { return BPF_STMT(BPF_RET | BPF_K, action); }
/// Goes on if it holds, else skips `others` instructions.
constexpr sock_filter unless(std::uint16_t condition, std::uint32_t value, std::uint8_t others) {
  return BPF_JUMP(static_cast<std::uint16_t>(BPF_JMP | condition | BPF_K), value, 0, others);
}

constexpr std::uint32_t fail(int error) { return SECCOMP_RET_ERRNO | static_cast<std::uint32_t>(error); }

/// Of each call: its number, its flags, its mode, and the answers.
constexpr std::size_t head = 8, per_call = 7;
constexpr std::uint32_t x32_calls = 0x4000'0000;  // that bit of a number: another ABI, with numbers of its own

constexpr auto make_program() {
  std::array<sock_filter, head + per_call * calls.size() + 1> program{};
  std::size_t at = 0;
  const auto add = [&](sock_filter instruction) { program[at++] = instruction; };
  // What is not a system call of this ABI could set a mode in another way; the daemons make none.
  add(load(offsetof(seccomp_data, arch)));
  add(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0));
  add(answer(fail(ENOSYS)));
  add(load(offsetof(seccomp_data, nr)));
  add(unless(BPF_JGE, x32_calls, 1));
  add(answer(fail(ENOSYS)));
  add(unless(BPF_JEQ, SYS_openat2, 1));
  add(answer(fail(ENOSYS)));
  constexpr auto makes_files = static_cast<std::uint32_t>(O_CREAT | (O_TMPFILE & ~O_DIRECTORY));
  for (const ModeCall& call : calls) {
    add(unless(BPF_JEQ, call.number, per_call - 1));
    add(call.flags < 0 ? load_argument(call.mode) : load_argument(call.flags));
    add(call.flags < 0 ? unless(BPF_JSET, ~0U, 0) : unless(BPF_JSET, makes_files, 3));
    add(load_argument(call.mode));
    add(unless(BPF_JSET, S_ISUID | S_ISGID, 1));
    add(answer(fail(EPERM)));
    add(answer(SECCOMP_RET_ALLOW));
  }
  add(answer(SECCOMP_RET_ALLOW));
  return program;
}
constexpr auto program = make_program();

}  // namespace

bool refuse_setuid_bits() {
  // The kernel only reads it. NOLINTNEXTLINE(cppcoreguidelines-pro-type-const-cast)
  const sock_fprog filter{.len = program.size(), .filter = const_cast<sock_filter*>(program.data())};
  return ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

}  // namespace vmm::virtio
