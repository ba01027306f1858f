#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <vector>

#include "exec/platform.hpp"
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
    constexpr std::size_t most_around = 512;
    if (routine.size() + most_around > bytes - used_) return nullptr;
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
  /// What functions of the engine begin with: its way into compiled code (push %rbx, %rbp, %r12, %r13), and a host
  /// routine (mov %rdx, %r11).
  static constexpr std::array<unsigned, 6> shared_routines{0x53, 0x55, 0x41, 0x54, 0x41, 0x55};
  static constexpr std::array<unsigned, 3> host_routine{0x49, 0x89, 0xD3};

  static std::byte* map(int file, int protection) {
    void* const at = ::mmap(nullptr, bytes, protection, MAP_SHARED, file, 0);
    require(at != MAP_FAILED, "memory for code");
    return static_cast<std::byte*>(at);
  }
  template <std::size_t N>
  static bool begins(std::span<const std::byte> code, const std::array<unsigned, N>& with) {
    return code.size() >= N && std::equal(with.begin(), with.end(), code.begin(),
                                          [](unsigned a, std::byte b) { return std::byte(a) == b; });
  }
  static void append(Code& to, std::initializer_list<unsigned> list) {
    for (const unsigned b : list) to.push_back(static_cast<std::byte>(b));
  }
  static void append_distance(Code& to, std::size_t from, std::size_t target) {
    const auto distance = static_cast<std::uint32_t>(target - (from + to.size() + 4));
    for (unsigned n = 0; n < 4; ++n) to.push_back(static_cast<std::byte>(distance >> (8 * n) & 0xFF));
  }
  static Code jump(std::size_t from, std::size_t to) {
    Code code;
    append(code, {0xE9});
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
    append(code, {0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x48, 0x83, 0xEC,
                  0x18});                                                  // push them all; sub $24, %rsp
    append(code, {0x0F, 0xAE, 0x1C, 0x24, 0xD9, 0x7C, 0x24, 0x04, 0xE8});  // stmxcsr (%rsp); fnstcw 4(%rsp); call
    append_distance(code, used_, body);
    append(code, {0x0F, 0xAE, 0x5C, 0x24, 0x08, 0xD9, 0x7C, 0x24, 0x0C});  // stmxcsr 8(%rsp); fnstcw 12(%rsp)
    append(code, {0x48, 0x8B, 0x4C, 0x24, 0x08, 0x48, 0x33, 0x0C, 0x24, 0x48, 0xC1, 0xE1,
                  0x10});  // 8(%rsp) ^ (%rsp), 48 bits
    trap_unless_zero(code);
    append(code, {0x9C, 0x59, 0xF6, 0xC5, 0x04});  // pushfq; pop %rcx; test $4, %ch
    trap_unless_zero(code);
    constexpr std::array<std::array<unsigned, 5>, 6> compares{{{0x48, 0x3B, 0x5C, 0x24, 0x40},
                                                               {0x48, 0x3B, 0x6C, 0x24, 0x38},
                                                               {0x4C, 0x3B, 0x64, 0x24, 0x30},
                                                               {0x4C, 0x3B, 0x6C, 0x24, 0x28},
                                                               {0x4C, 0x3B, 0x74, 0x24, 0x20},
                                                               {0x4C, 0x3B, 0x7C, 0x24, 0x18}}};
    for (const auto& compare : compares) {
      for (const unsigned b : compare) append(code, {b});
      trap_unless_zero(code);
    }
    append(code, {0x48, 0x83, 0xC4, 0x18, 0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xC3});
    return code;
  }
  static void trap_unless_zero(Code& code) { append(code, {0x74, 0x02, 0x0F, 0x0B}); }  // jz past a ud2

  std::byte* to_write_{};
  std::byte* to_run_{};
  std::size_t used_{};
  std::vector<Piece> expected_;
};

}  // namespace vpmu::fuzz
