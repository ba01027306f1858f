#pragma once
#include <algorithm>
#include <cstdint>

#include "exec/blocks/code_cache.hpp"
#include "exec/compile/compiling.hpp"
#include "exec/compile/jit.hpp"
#include "exec/observe/tap.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// Everything of a vCPU that the engine works with. Segments of 16- and 32-bit code have a base; their limits and types
/// are ignored, unless checks_accesses is set.
struct CpuState {
  CodeMode mode{};                               ///< bits64: IA-32e mode with CS.L (SDM 3A 4.1); else by CS.D.
  bool stack_is_32_bit{true};                    ///< SS.B; ignored in 64-bit code.
  std::array<std::uint64_t, 4> segment_bases{};  ///< Of ES, CS, SS and DS; ignored in 64-bit code.
  std::array<std::uint64_t, 16> gpr{};           ///< By RegisterNumber.
  std::uint64_t rip{};                           ///< An offset in the code segment.
  std::uint64_t rflags{};
  std::uint64_t fs_base{}, gs_base{};
  std::uint64_t cr2{};
  PagingState paging;  ///< alignment_check is taken from rflags.
  std::uint8_t cpl{};
  bool checks_accesses{};  ///< The engine leaves every instruction to its owner, who checks alignment and limits.
};

/// What retired since Engine::load().
struct Passed {
  std::uint64_t instructions{}, branches{}, loads{}, stores{};
  /// Loads and stores of instructions that make several, beyond the first: a micro-operation each. Negative: string
  /// instructions that did no element.
  std::int64_t more_loads{}, more_stores{};
};

/// What the TLBs have lost by an instruction that somebody else has run, after which control registers have these
/// values.
struct LostByInstruction {
  TlbFlush flush;
  std::uint64_t cr3{}, cr4{};
};

/// Runs the guest's instructions one by one, exactly: for one vCPU, on one thread. It leaves unknown instructions and
/// all faults to its owner: it stops before the instruction, with nothing changed.
class Engine {
 public:
  /// All must outlive it. Without `host_code` it knows no x87 and vector instructions, nor the few others that run on
  /// the host's CPU, and compiles nothing.
  Engine(Ram& ram, Platform& platform, HostCode* host_code = nullptr, Compiling compiling = {});
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;
  Engine(Engine&&) = delete;
  Engine& operator=(Engine&&) = delete;
  ~Engine() = default;

  /// Starts from this state. All translations and decoded blocks are checked anew: the guest may have run elsewhere.
  void load(const CpuState& state);
  /// The same after the owner has run the instruction that the engine left, and nothing else ran since. Keeps passed(),
  /// and unless control registers changed also translations and blocks. `flush`: what the TLBs have lost by that
  /// instruction, which was INVLPG, MOV to CR3 or their like: those are forgotten, and no more.
  void resume(const CpuState& state, const std::optional<TlbFlush>& flush = {});
  /// The engine forgets this, too; after several of them call resume(). The observer is not told: whoever ran the
  /// instruction may have told it when that ran.
  void lose(const LostByInstruction& lost);
  /// The page at this linear address, if no code runs from it, is looked up anew at its next access.
  void forget_page(std::uint64_t at);
  [[nodiscard]] CpuState state() const;
  /// The next write to each page calls Ram::will_write() again, even if the engine has written to the page before. For
  /// an owner that passes these calls on to others, and lets them run in between.
  void tell_of_writes_anew();
  /// Somebody else has written to a page of RAM since load(): its decoded blocks are checked anew.
  void written(GuestPhysical page) { code_.pages().forget(core_, page); }
  /// Somebody may have written to RAM and has not said where: all decoded blocks are checked anew.
  void written_unseen() { code_.doubt(core_); }
  /// From here on `observer` is told what instructions do; it must outlive that. Null: nobody is told, at no cost. A
  /// change of observer discards all translations. Not from within run().
  void observe(Observer* observer);
  /// What the TLBs lose if this is the next state, and nothing else is known of how it came to be.
  [[nodiscard]] std::optional<TlbFlush> flush_before(const CpuState& state) const;
  /// How many instructions have retired while observed: the `now` that observers get.
  [[nodiscard]] std::uint64_t observed() const;
  /// The same for a Platform that is asked by an instruction: those before it, of which the observer is told first.
  std::uint64_t observed_before();

  /// From here on instructions are counted by their class, or no longer. A change discards all translations. Not from
  /// within run().
  void count_classes(bool wanted);
  /// How many instructions of each class have retired while that was wanted; InstructionClass::other is not counted.
  [[nodiscard]] const ClassCounts& classes() const { return core_.classes; }

  /// Runs until `instructions` have retired, or until something stops it earlier: `Stop`. Returns with Stop::again
  /// after a part of a long string instruction; call it again.
  Stop run(std::uint64_t instructions);
  /// From here on run() stops, with Stop::accesses, before an instruction that may make so many loads or stores beyond
  /// its first that more than `most` of one kind would have passed since this call. Any instruction runs by default.
  void limit_accesses(std::uint64_t max) {
    core_.more.left = static_cast<std::int64_t>(std::min<std::uint64_t>(max, MoreAccesses::unlimited));
  }
  /// After run() gave Stop::fault: which byte could not be reached, if that is why.
  [[nodiscard]] const std::optional<MissingAccess>& missing() const { return core_.missing; }
  /// After run() gave Stop::float_error: the exceptions that #XM adds to the flags in MXCSR, or 0 for #MF. SDM 1 8.7,
  /// 11.5.
  [[nodiscard]] std::uint8_t raised() const { return core_.raised; }
  /// The bytes of the instruction that run() begins with, if the engine has decoded it lately; else empty. Valid until
  /// another member is called. Cost: a look into a table.
  [[nodiscard]] std::span<const std::byte> next_code() const;
  /// What retired since load().
  [[nodiscard]] Passed passed() const;
  /// Blocks decoded so far: the same code is not decoded twice.
  [[nodiscard]] std::uint64_t decoded_blocks() const { return code_.decoded(); }
  /// Blocks compiled so far; a block that was dropped and compiled again counts twice.
  [[nodiscard]] std::uint64_t compiled_blocks() const { return jit_.compiled(); }
  /// How often compiled code was entered: seldom, if blocks are linked to each other.
  [[nodiscard]] std::uint64_t entered_compiled() const { return jit_.entered(); }
  /// While `kick` is set, run() makes some progress and then returns early, with Stop::budget. It checks the flag after
  /// whatever takes much longer than an instruction; other code uses up its budget soon. Others may set the flag
  /// meanwhile; it must outlive the engine, or the next watch().
  void watch(KickFlag kick) { core_.kick = kick; }
  /// Makes run() return, with Stop::budget, as soon as the platform call that this is called from is done.
  void stop_soon() { asked_to_stop_ = true; }

 private:
  struct Alone;
  Stop step(Alone& alone);
  Stop step_of_many();
  Stop run_one();
  void leave(const Counts& left);
  Block* next_block();
  void came_from(Block& from, Block& block);
  void begin_generation();
  void forget(const TlbFlush& lost, const PagingState& next);
  void set_state(const CpuState& state);
  void take_privilege();

  Core core_;
  CodeCache code_;
  Jit jit_;
  std::unique_ptr<Tap> tap_;
  Counts given_{};
  Run stepped_;  ///< Function of the op that stops after an op that ran alone.
  bool asked_to_stop_{};
};

}  // namespace vpmu::exec
