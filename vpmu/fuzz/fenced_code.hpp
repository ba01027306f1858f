#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "exec/state/platform.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "fuzz_input.hpp"

namespace vpmu::fuzz {

/// Executable memory that watches over what stands there: INT3 between all routines, so that a jump out of one dies; no
/// address to write to in the mapping that runs; and each call from the engine goes through a check of what a function
/// must preserve: RBX, RBP, R12 to R15, MXCSR, the x87 control word, and DF. UD2 where it is not.
class FencedCode final : public exec::HostCode {
 public:
  FencedCode() {
    const int file = ::memfd_create("fenced", MFD_CLOEXEC);
    require(file >= 0 && ::ftruncate(file, bytes) == 0, "memory for code");
    to_write_ = map(file, PROT_READ | PROT_WRITE);
    to_run_ = map(file, PROT_READ | PROT_EXEC);
    ::close(file);
    std::memset(to_write_, breakpoint, bytes);
  }
  FencedCode(const FencedCode&) = delete;
  FencedCode& operator=(const FencedCode&) = delete;
  ~FencedCode() override {
    ::munmap(to_write_, bytes);
    ::munmap(to_run_, bytes);
  }

  const std::byte* add(std::span<const std::byte> routine) override {
    constexpr std::size_t max_around = 512;
    if (routine.size() + max_around > bytes - used_) return nullptr;
    const std::size_t body = put(routine);
    if (begins(routine, host_routine)) {
      ++watched;
      return to_run_ + put(watch(body));
    }
    if (!begins(routine, shared_routines)) return to_run_ + body;
    // The first of them is the function; the engine knows the others by their distance. Its beginning goes elsewhere,
    // and then back.
    ++watched;
    const std::size_t beginning = put(routine.first(shared_routines.size()));
    used_ = beginning + shared_routines.size();
    put(jump(used_, body + shared_routines.size()));
    const std::size_t watcher = put(watch(beginning));
    write(body, jump(body, watcher));
    return to_run_ + body;
  }
  bool change(const std::byte* at, std::uint32_t to) override {
    const auto offset = static_cast<std::size_t>(at - to_run_);
    require(offset < used_ && sizeof to <= used_ - offset, "what is changed was added");
    write(offset, std::as_bytes(std::span{&to, 1}));
    return true;
  }
  void clear() override {
    std::memset(to_write_, breakpoint, used_);
    expected_.clear();
    used_ = 0;
  }
  /// Nothing has been written but what was added.
  void check() const {
    for (const Piece& p : expected_)
      require(std::equal(p.code.begin(), p.code.end(), to_run_ + p.at), "code stays as it was added");
    std::size_t at = 0;
    for (const Piece& p : expected_) {
      if (p.at < at) continue;  // written over another one
      require(std::all_of(to_run_ + at, to_run_ + p.at, [](std::byte b) { return b == std::byte{breakpoint}; }),
              "nothing stands between routines");
      at = p.at + p.code.size();
    }
  }

  std::uint64_t watched{};  ///< Functions whose calls are checked.

 private:
  using Code = std::vector<std::byte>;
  struct Piece {
    std::size_t at;
    Code code;
  };
  static constexpr std::size_t bytes = 4U << 20U, fence = 64;
  static constexpr unsigned char breakpoint = 0xCC;
  static constexpr std::byte jmp{0xE9}, call{0xE8};  // with a distance of 32 bits
  /// What functions of the engine begin with: its way into compiled code, and a host routine.
  static inline const auto shared_routines = X86("push %rbx; push %rbp; push %r12; push %r13");
  static inline const auto host_routine = X86("mov %rdx, %r11");

  static std::byte* map(int file, int protection) {
    void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
    require(at != MAP_FAILED, "memory for code");
    return static_cast<std::byte*>(at);
  }
  static bool begins(std::span<const std::byte> code, std::span<const std::uint8_t> with) {
    return code.size() >= with.size() && std::equal(with.begin(), with.end(), code.begin(),
                                                    [](unsigned a, std::byte b) { return std::byte(a) == b; });
  }
  static void append_distance(Code& to, std::size_t from, std::size_t target) {
    const auto distance = static_cast<std::uint32_t>(target - (from + to.size() + 4));
    for (unsigned n = 0; n < 4; ++n) to.push_back(static_cast<std::byte>(distance >> (8 * n) & 0xFF));
  }
  static Code jump(std::size_t from, std::size_t to) {
    Code code;
    code.push_back(jmp);
    append_distance(code, from, to);
    return code;
  }

  void write(std::size_t at, std::span<const std::byte> code) {
    std::memcpy(to_write_ + at, code.data(), code.size());
    for (Piece& p : expected_)
      if (at >= p.at && at + code.size() <= p.at + p.code.size())
        std::ranges::copy(code, p.code.begin() + static_cast<std::ptrdiff_t>(at - p.at));
  }
  std::size_t put(std::span<const std::byte> code) {
    const std::size_t at = used_;
    expected_.push_back({at, Code{code.begin(), code.end()}});
    std::memcpy(to_write_ + at, code.data(), code.size());
    used_ = (at + code.size() + fence + 15) / 16 * 16;
    return at;
  }
  /// Calls `body`. Its frame: both control words before and after, then R15 to RBX.
  [[nodiscard]] Code watch(std::size_t body) const {
    Code code;
    append(code, X86("push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; sub $24, %rsp; "
                     "stmxcsr (%rsp); fnstcw 4(%rsp)"));
    code.push_back(call);
    append_distance(code, used_, body);
    append(code, X86("stmxcsr 8(%rsp); fnstcw 12(%rsp); "
                     "mov 8(%rsp), %rcx; xor (%rsp), %rcx; shl $16, %rcx"));  // 48 bits
    trap_unless_zero(code);
    append(code, X86("pushfq; pop %rcx; test $4, %ch"));
    trap_unless_zero(code);
    for (const auto compare : {X86("cmp 64(%rsp), %rbx"), X86("cmp 56(%rsp), %rbp"), X86("cmp 48(%rsp), %r12"),
                               X86("cmp 40(%rsp), %r13"), X86("cmp 32(%rsp), %r14"), X86("cmp 24(%rsp), %r15")}) {
      append(code, compare);
      trap_unless_zero(code);
    }
    append(code, X86("add $24, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret"));
    return code;
  }
  static void trap_unless_zero(Code& code) { append(code, X86("jz 1f; ud2; 1:")); }

  std::byte* to_write_{};
  std::byte* to_run_{};
  std::size_t used_{};
  std::vector<Piece> expected_;
};

}  // namespace vpmu::fuzz
