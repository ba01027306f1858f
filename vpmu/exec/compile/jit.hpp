#pragma once
#include <cstdint>

#include "exec/host/host_assembler.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// The engine's second stage: blocks that run often become code of this CPU, the guest's own instructions with host
/// registers for the guest's and with memory addresses from the software TLB.
///
/// The interpreter enters such code by the block's first op, as if it were an op. The code then runs from block to
/// block, and checks whether the counts that are left suffice and, on entering another page, whether that page is
/// stale. It returns to the interpreter for what it cannot run, the rest of a block or one op, before that op has had
/// any effect.
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
  /// The block was just decoded: from here on counts how often it begins.
  void expect(Block& block) const;
  [[nodiscard]] bool is_due(const Block& block) const { return block.begun >= after_; }
  /// Compiles it, or leaves it to the interpreter for good.
  void compile(Core& core, Block& block);
  /// Runs core.block, whose counts have been subtracted, and the blocks after it. Null: the engine stops; Core::stop
  /// says why.
  const Site* enter(Core& core);
  /// `from` took its exit `way` to `to`, which is compiled: links them, so that next time the code jumps there. If `to`
  /// is in another page, the code checks whether that page is stale.
  void link(Block& from, unsigned way, const Block& to);
  /// Removes all links to the block, if it is compiled: its code must not run now. It may run again later.
  void unlink(Core& core, const Block& block);
  /// No room was left for a block: clear() makes some.
  [[nodiscard]] bool is_full() const { return full_; }
  /// Whether it has put code into the memory that it shares with routines.
  [[nodiscard]] bool has_code() const { return enter_ != nullptr; }
  /// All blocks, and all code, are gone.
  void clear(Core& core);
  /// Blocks compiled so far.
  [[nodiscard]] std::uint64_t compiled() const { return compiled_; }
  /// How often compiled code was entered.
  [[nodiscard]] std::uint64_t entered() const { return entered_; }

 private:
  bool make_routines(Core& core);
  static void make_known(Core& core, Compiled& compiled);
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

/// Writes the code for a block into `to`. The pointers in `compiled` are distances from the beginning of the code.
/// False: it is not worth it.
bool translate(const Core& core, Block& block, Compiled& compiled, HostAssembler& to);

}  // namespace vpmu::exec
