#pragma once
#include <cstdint>

#include "exec/core.hpp"
#include "exec/host_assembler.hpp"

namespace vpmu::exec {

/// The engine's second stage: blocks that run often become code of this CPU, the guest's own instructions with host
/// registers for the guest's and, for memory, addresses that the software TLB gives.
///
/// The interpreter enters such code by the block's first op, as if it were one. From there it goes from block to block.
/// On the way it looks whether the counts that are left suffice and, in another page, whether that is stale. It comes
/// back to the interpreter for what it does not have: for the rest of a block, or for one op, before which nothing of
/// that op has happened.
class Jit {
 public:
  /// Blocks are compiled when they are begun for the `after`th time; 0: never. Without `code`, or on CPUs without AVX2
  /// and BMI2, never.
  Jit(HostCode* code, std::uint32_t after);
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;
  Jit(Jit&&) = delete;
  Jit& operator=(Jit&&) = delete;
  ~Jit() = default;

  void attach(Core& core);
  /// The block was just decoded: it will be compiled when it is worth that.
  void expect(Block& block) const;
  [[nodiscard]] bool is_due(const Block& block) const { return block.begun >= after_; }
  /// Compiles it, or makes it the interpreter's for good.
  void compile(Core& core, Block& block);
  /// Runs core.block, whose counts have been taken off, and on from there. Null: the engine stops, Core::stop saying
  /// why.
  const Site* enter(Core& core);
  /// `from` went its way `way` to `to`, which is compiled: next time at once. A block in another page is looked at, for
  /// that one may be stale.
  void link(Block& from, unsigned way, const Block& to);
  /// From here on nobody goes to the block at once: it must not run as it was compiled. It may later.
  void unlink(Core& core, const Block& block);
  /// The same for good: its code is forgotten.
  void drop(Core& core, Block& block);
  /// No room was left for a block: clear() makes some.
  [[nodiscard]] bool is_full() const { return full_; }
  /// Whether it has put anything where routines might have room.
  [[nodiscard]] bool has_code() const { return enter_ != nullptr; }
  /// All blocks, and all code, are gone.
  void clear(Core& core);
  /// Blocks compiled so far.
  [[nodiscard]] std::uint64_t compiled() const { return compiled_; }
  /// How often compiled code was entered.
  [[nodiscard]] std::uint64_t entered() const { return entered_; }

 private:
  bool make_routines(Core& core);
  bool point(const Compiled& from, unsigned way, const std::byte* to);

  HostCode* code_;
  std::uint32_t after_;
  const Site* (*enter_)(Core*, const std::byte*){};
  HostAssembler assembler_;
  std::uint64_t compiled_{};
  std::uint64_t entered_{};
  std::uint64_t compiled_since_clear_{};
  bool full_{};
};

/// Writes the code for a block into `to`. Its places are filled in as distances from the beginning of the code. False:
/// it is not worth it.
bool translate(const Core& core, Block& block, Compiled& compiled, HostAssembler& to);

/// What the first op of a block does that has not been compiled yet, and of one that has.
Run op_counted();
Run op_compiled();

}  // namespace vpmu::exec
