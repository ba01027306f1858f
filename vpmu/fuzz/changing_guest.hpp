#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "engine_guest.hpp"
#include "fenced_code.hpp"
#include "watcher.hpp"

/// A guest of two vCPUs and four address spaces, run in two ways: by engines that keep code, and by one that keeps
/// nothing.
namespace vpmu::fuzz {

/// An address space is one page of ScatteredRam's tables, which is its own PDPT, page directory and page table: entry 0
/// leads to the page itself, the others to frames. So it maps linear pages 1 to 31, which 32-bit code reaches, too.
namespace space {
inline constexpr unsigned count = 4, first = 1, end = linear_pages;
inline constexpr std::uint64_t present = 1, writable = 2, user = 4, accessed = 1U << 5, execute_disable = 1ULL << 63;
inline constexpr std::uint64_t all = present | writable | user;
inline constexpr unsigned entries = 512;

inline std::uint64_t root(unsigned number) { return ScatteredRam::tables + number * page_size; }
/// Each has a PCID.
inline std::uint16_t pcid(unsigned number) { return static_cast<std::uint16_t>(number + 1); }
inline std::uint64_t& entry(ScatteredRam& ram, unsigned number, unsigned page) {
  return ram.table_word(number * entries + page);
}
}  // namespace space

/// What a vCPU is to do.
struct Task {
  unsigned vcpu{};
  exec::CpuState from;
  std::uint64_t budget{};
  std::array<std::uint8_t, 4> pieces{};  ///< How many instructions to ask for each time, over and over.
  bool loads{};                          ///< By load(), not resume(): the guest may have run elsewhere.
  std::vector<TlbFlush> lost;            ///< What it has run before: MOV to CR3, which comes first, or INVLPG.
  bool observed{};
};

/// Refuses some of what the engine asks of its executable memory.
class ScarceCode final : public exec::HostCode {
 public:
  explicit ScarceCode(FencedCode& code) : code_{&code} { code.clear(); }
  void limit(unsigned max_blocks, unsigned changes_refused) {
    max_ = max_blocks;
    refused_ = changes_refused;
  }
  const std::byte* add(std::span<const std::byte> routine) override {
    const bool is_routine = routine.size() >= 3 && routine[0] == std::byte{0x49} && routine[1] == std::byte{0x89} &&
                            routine[2] == std::byte{0xD3};
    if (!is_routine && max_ != 0 && added_++ == max_) return nullptr;
    return code_->add(routine);
  }
  bool change(const std::byte* at, std::uint32_t to) override {
    return (refused_ == 0 || ++changes_ % refused_ != 0) && code_->change(at, to);
  }
  void clear() override {
    code_->clear();
    added_ = 0;
    ++cleared;
  }
  std::uint64_t cleared{};

 private:
  FencedCode* code_;
  unsigned max_{}, added_{};        ///< Compiled blocks and what they share; 0: no limit.
  unsigned refused_{}, changes_{};  ///< Every so many changes one is refused; 0: none.
};

/// Runs tasks by engines that keep code, as SoftBackend does: a vCPU that has written tells the other one.
class KeepingMachine {
 public:
  KeepingMachine(ScatteredRam& ram, std::span<FencedCode, 2> code, exec::Compiling compiling)
      : vcpus_{Vcpu{ram, code[0]}, Vcpu{ram, code[1]}}, compiling_{compiling} {}

  void limit_code(unsigned max_blocks, unsigned changes_refused) {
    for (Vcpu& v : vcpus_) v.code.limit(max_blocks, changes_refused);
  }
  /// A device has written to the page.
  void written(GuestPhysical page) {
    for (Vcpu& v : vcpus_)
      if (v.engine) v.engine->written(page);
  }
  End run(const Task& task) {
    Vcpu& v = vcpus_.at(task.vcpu);
    const bool is_new = !v.engine;
    if (is_new) v.engine.emplace(v.ram, v.surroundings, &v.code, compiling_);
    exec::Engine& engine = *v.engine;
    v.surroundings.engine = &engine;
    if (std::exchange(last_, task.vcpu) != task.vcpu) engine.tell_of_writes_anew();
    engine.observe(task.observed ? &v.watcher : nullptr);
    if (task.loads || is_new)
      engine.load(task.from);
    else
      engine.resume(task.from, task.lost.empty() ? std::nullopt : std::optional{task.lost.front()});
    for (std::size_t n = 1; n < task.lost.size(); ++n) engine.resume(engine.state(), task.lost[n]);
    const exec::Passed before = engine.passed();
    v.surroundings.retired_before = v.retired - before.instructions;
    Stop stop = Stop::budget;
    std::uint64_t done = 0;
    for (std::size_t n = 0; stop == Stop::budget && done < task.budget; ++n) {
      const std::uint64_t max = std::min<std::uint64_t>(task.budget - done, task.pieces[n % task.pieces.size()]);
      stop = run_some(engine, max, [&] { tell_others(task.vcpu); });
      const std::uint64_t now = engine.passed().instructions - before.instructions;
      require(stop != Stop::budget || now > done, "it goes on");
      done = now;
    }
    v.retired += done;
    return {stop, engine.state(), difference(engine.passed(), before), v.surroundings.state};
  }
  [[nodiscard]] std::uint64_t compiled_blocks() const {
    std::uint64_t n = 0;
    for (const Vcpu& v : vcpus_) n += v.engine ? v.engine->compiled_blocks() : 0;
    return n;
  }
  [[nodiscard]] const Watcher& watcher(unsigned vcpu) const { return vcpus_.at(vcpu).watcher; }
  [[nodiscard]] std::uint64_t cleared() const { return vcpus_[0].code.cleared + vcpus_[1].code.cleared; }

 private:
  /// RAM that remembers which pages the engine was going to write to.
  class Ram final : public exec::Ram {
   public:
    explicit Ram(ScatteredRam& ram) : ram_{&ram} {}
    std::byte* page(GuestPhysical at) override { return ram_->page(at); }
    void will_write(GuestPhysical at) override {
      ram_->will_write(at);
      open.push_back(at);
    }
    std::optional<std::uint64_t> read_word(GuestPhysical at, unsigned bytes) override {
      return ram_->read_word(at, bytes);
    }
    bool exchange_word(GuestPhysical at, unsigned bytes, std::uint64_t expected, std::uint64_t desired) override {
      return ram_->exchange_word(at, bytes, expected, desired);
    }
    std::vector<GuestPhysical> open;

   private:
    ScatteredRam* ram_;
  };
  struct Vcpu {
    Vcpu(ScatteredRam& memory, FencedCode& room) : ram{memory}, code{room} {}
    Ram ram;
    ScarceCode code;
    Surroundings surroundings;
    Watcher watcher{false};
    std::uint64_t retired{};
    std::optional<exec::Engine> engine;
  };
  void tell_others(unsigned writer) {
    for (const GuestPhysical page : vcpus_.at(writer).ram.open)
      if (auto& other = vcpus_.at(1 - writer).engine) other->written(page);
    vcpus_.at(writer).ram.open.clear();
  }

  std::array<Vcpu, 2> vcpus_;
  exec::Compiling compiling_;
  unsigned last_{};
};

/// Runs tasks by an engine that knows nothing from before: a new one for each task, or for each instruction.
class ForgetfulMachine {
 public:
  ForgetfulMachine(ScatteredRam& ram, FencedCode& code) : ram_{&ram}, code_{&code} {}
  End run(const Task& task, bool one_by_one) {
    Surroundings& surroundings = surroundings_.at(task.vcpu);
    std::uint64_t& retired = retired_.at(task.vcpu);
    End end{Stop::budget, task.from, {}, {}};
    std::optional<exec::Engine> engine;
    while (end.stop == Stop::budget && end.passed.instructions < task.budget) {
      code_->clear();
      engine.emplace(*ram_, surroundings, code_, interpreted);
      surroundings.engine = &*engine;
      surroundings.retired_before = retired;
      engine->load(end.state);
      end.stop = run_some(*engine, one_by_one ? 1 : task.budget - end.passed.instructions);
      end.state = engine->state();
      end.passed = sum(end.passed, engine->passed());
      retired += engine->passed().instructions;
    }
    end.vectors = surroundings.state;
    return end;
  }

 private:
  ScatteredRam* ram_;
  FencedCode* code_;
  std::array<Surroundings, 2> surroundings_;
  std::array<std::uint64_t, 2> retired_{};
};

/// Code to put somewhere.
struct Piece {
  std::string_view code;
  std::size_t distance_at{};  ///< Where the distance of its branch is to be filled in; 0: nowhere.
};
using std::string_view_literals::operator""sv;
inline constexpr std::array pieces_of_code{
    Piece{"\x48\x8D\x47\x01\xC3"sv},                                          // lea 1(%rdi), %rax; ret
    Piece{"\x83\xC3\x01\xE9\0\0\0\0"sv, 4},                                   // add $1, %ebx; jmp
    Piece{"\x83\xC3\x01\xE8\0\0\0\0\xC3"sv, 4},                               // add $1, %ebx; call; ret
    Piece{"\xFF\xC3\xFF\xC9\x75\xFA\xC3"sv},                                  // inc %ebx; dec %ecx; jnz back; ret
    Piece{"\x88\x07\xC3"sv},                                                  // mov %al, (%rdi); ret
    Piece{"\x06"sv},                                                          // undefined in 64-bit code
    Piece{"\xB8\x01\x02\x03\x04\xC3"sv},                                      // mov $0x4030201, %eax; ret
    Piece{"\x66\x66\x66\x66\x66\x66\x66\x66\x66\x66\x90\xC3"sv},              // a NOP of 11 bytes; ret
    Piece{"\xFF\xE2"sv},                                                      // jmp *%rdx
    Piece{"\xFF\xD2\x83\xC3\x01\xC3"sv},                                      // call *%rdx; add $1, %ebx; ret
    Piece{"\x0F\x84\0\0\0\0\xC3"sv, 2},                                       // jz; ret
    Piece{"\xF3\xAA\xC3"sv},                                                  // rep stosb; ret
    Piece{"\xF3\xA4\xC3"sv},                                                  // rep movsb; ret
    Piece{"\x0F\x58\xC8\x66\x0F\xD4\xD1\xC3"sv},                              // addps; paddq; ret
    Piece{"\xF3\x0F\x6F\x06\xF3\x0F\x7F\x07\xC3"sv},                          // movdqu (%rsi); movdqu to (%rdi); ret
    Piece{"\xD9\xE8\xDE\xC1\xC3"sv},                                          // fld1; faddp; ret
    Piece{"\xF0\x0F\xC0\x07\xC3"sv},                                          // lock xadd %al, (%rdi); ret
    Piece{"\x9C\x9D\xC3"sv},                                                  // pushf; popf; ret
    Piece{"\x0F\x31\x0F\x30\xC3"sv},                                          // rdtsc; wrmsr; ret
    Piece{"\x89\x06\x48\x8D\x47\x01\xC3"sv},                                  // mov %eax, (%rsi); lea; ret
    Piece{"\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90"  // many NOPs; jmp
          "\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\x90\xE9\0\0\0\0"sv,
          29},
    Piece{"\x48\x8D\x05\0\0\0\0\x01\xC3\xC3"sv, 3},  // lea (%rip), %rax; add %eax, %ebx; ret
    Piece{"\x01\x1D\0\x01\0\0\xC3"sv},               // add %ebx, 256(%rip); ret
    Piece{"\xFF\x15\0\0\0\0\xC3"sv, 2},              // call *(%rip); ret
};

}  // namespace vpmu::fuzz
