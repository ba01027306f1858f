#pragma once
#include <cstdint>
#include <span>

#include "uarch/state.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::uarch {

/// What an access came to.
struct ClockedAccess {
  std::uint64_t physical{};
  std::uint16_t bytes{};
  std::uint16_t late{};  ///< Cycles by which a load's data come later than from the L1.
  HitLevel level{};      ///< Where they come from.
};

/// How the front end comes to a piece of code.
struct CodeArrival {
  bool taken{};          ///< By way of a taken branch.
  bool mispredicted{};   ///< By way of a mispredicted branch.
  bool decoded{true};    ///< It is in the decoded micro-op cache.
  std::uint16_t wait{};  ///< Cycles until it is there, later than from the L1I.
};

/// A straight piece of a block's code that begins in one line.
struct CodePart {
  std::uint16_t first{}, instructions{};     ///< Of the block's instructions.
  std::uint16_t first_access{}, accesses{};  ///< Of SeenBlock::accesses.
  std::uint16_t offset{};                    ///< Of its first byte in the block.
  std::uint16_t line{};                      ///< Of SeenBlock::lines: where it begins.
  bool is_whole{};  ///< It ends in a branch, or where the line does. Otherwise what runs next belongs to it.
};

/// What a CoreClock knows of a block's code.
struct BlockCode {
  std::span<const CodePart> parts;
  const void* known{};  ///< The clock's own.
};

/// Fetches code for a CoreClock.
class CodeFetcher {
 public:
  virtual ~CodeFetcher() = default;
  /// The front end comes to the instruction at `rip`, which begins in this line.
  virtual CodeArrival arrive(std::uint64_t rip, const SeenCode& line) = 0;
};

/// Says how many cycles a core takes for what a ProcessorModel sees of it. `now` is Engine::observed(): instructions
/// that have retired. They may come in any pieces: the cycles are the same.
class CoreClock {
 public:
  virtual ~CoreClock() = default;

  /// Who fetches code from now on.
  virtual void fetch_by(CodeFetcher& fetcher) = 0;
  /// Of a block that begins now. No parts: what ran before must first end, and the block is for begin().
  virtual BlockCode code_of(const SeenBlock& block) = 0;
  /// All of a part that is whole retires, after the parts before it. `accesses` are its own. The code is of the last
  /// code_of().
  virtual void retire(const BlockCode& code, std::size_t number, std::span<const ClockedAccess> accesses,
                      const CodeArrival& arrival) = 0;
  /// Instead of retire(): the block begins after `now` instructions, or goes on from its instruction `first`. How far
  /// it gets is not known yet, so its code is fetched when something of it retires or accesses memory.
  virtual void begin(const SeenBlock& block, std::uint64_t now, std::size_t first) = 0;
  /// What comes next follows `now` instructions, and is fetched if it is another part.
  virtual void reach(std::uint64_t now) = 0;
  /// The instruction that reach() has come to makes this access.
  virtual void access(bool store, const ClockedAccess& access, std::uint64_t now) = 0;
  /// So many instructions have retired.
  virtual void retire_to(std::uint64_t now) = 0;
  /// Cycles from the beginning on: at the end of the last part; and after `now` instructions.
  [[nodiscard]] std::uint64_t at_part() const { return told_; }
  virtual std::uint64_t cycles(std::uint64_t now) = 0;
  /// The state between two instructions.
  virtual void visit_state(const StateVisitor& visit, std::uint64_t now) = 0;

 protected:
  std::uint64_t told_{};
};

}  // namespace vpmu::uarch
