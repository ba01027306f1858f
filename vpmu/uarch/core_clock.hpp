#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "uarch/state.hpp"
#include "vpmu/observer.hpp"
#include "vpmu/retirement.hpp"

namespace vpmu::uarch {

/// Lines that begin their way to a core with an access, or did so before. They are numbered in the order in which they
/// begin; the names of the last ones tell them apart. One word, which the host passes on as fast as none.
class Transfers {
 public:
  static constexpr std::uint32_t kept = 128;  ///< The last so many can be waited for.
  enum From : std::uint8_t { nowhere, l2, l3, memory };
  static constexpr unsigned max = 6;  ///< That begin with an access: those behind them are forgotten.

  constexpr Transfers() = default;
  /// Of any word.
  static constexpr Transfers of(std::uint32_t word) {
    Transfers all;
    all.word_ = word;
    if (all.count() > max) all.word_ &= ~(count_mask << count_at);
    return all;
  }
  [[nodiscard]] constexpr std::uint32_t word() const { return word_; }
  /// Never 0.
  static constexpr std::uint32_t name(std::uint32_t number) { return number % kept + 1; }

  /// One more begins with the access, after those that did.
  constexpr void begin(std::uint32_t number, From source) { put(name(number), source); }
  /// So do these, which began after all of its own.
  constexpr void append(const Transfers& more) {
    if (waits_for() == 0) wait_for(more.waits_for());
    for (unsigned n = 0; n < more.count(); ++n) put(more.first() + n, more.from(n));
  }
  /// What the access wants is brought by the one of this name, which began before.
  constexpr void wait_for(std::uint32_t name) { word_ |= name << waits_at; }
  /// Those that begin, without what is waited for.
  [[nodiscard]] constexpr Transfers begun() const { return of(word_ & ~(name_mask << waits_at)); }

  [[nodiscard]] constexpr bool any() const { return word_ != 0; }
  /// How many begin. They have names from first() on.
  [[nodiscard]] constexpr unsigned count() const { return word_ >> count_at & count_mask; }
  [[nodiscard]] constexpr std::uint32_t first() const { return word_ & name_mask; }
  /// Where the n-th comes from. That of the access, if it misses, is number 0.
  [[nodiscard]] constexpr From from(unsigned n) const {
    return static_cast<From>(word_ >> (from_at + from_bits * n) & from_mask);
  }
  [[nodiscard]] constexpr unsigned count_from(From source) const {
    unsigned found = 0;
    for (unsigned n = 0; n < count(); ++n) found += from(n) == source ? 1 : 0;
    return found;
  }
  /// 0: nothing.
  [[nodiscard]] constexpr std::uint32_t waits_for() const { return word_ >> waits_at & name_mask; }
  friend constexpr bool operator==(const Transfers&, const Transfers&) = default;

 private:
  static constexpr unsigned waits_at = 8, count_at = 16, from_at = 20, from_bits = 2;
  static constexpr std::uint32_t name_mask = 0xFF, count_mask = 0xF, from_mask = 3;
  constexpr void put(std::uint32_t name, From source) {
    const unsigned n = count();
    if (n == max) return;
    if (n == 0) word_ |= name;
    word_ += (1U << count_at) + (std::uint32_t{source} << (from_at + from_bits * n));
  }
  std::uint32_t word_{};
};

/// What an access came to.
struct ClockedAccess {
  std::uint64_t physical{};
  std::uint16_t bytes{};
  std::uint16_t late{};  ///< Cycles by which a load's data come later than from the L1, once they are where they are.
  std::uint16_t store_late{};  ///< Of a load and store: by which the store's line is the core's own later than there.
  HitLevel level{};            ///< Where they come from.
  bool changed_code{};         ///< It stores to code that was fetched.
  std::uint16_t walk{};        ///< Cycles of `late` for the page walk, with which it begins.
  Transfers transfers{};
};

/// Cycles that lines take on their way.
struct TransferTimes {
  std::array<std::uint16_t, 4> from{};  ///< By Transfers::From.
  std::uint16_t channel{};              ///< For which one that comes from memory keeps others from coming.
};

/// How the front end comes to a piece of code.
struct CodeArrival {
  bool taken{};          ///< By way of a taken branch.
  bool mispredicted{};   ///< By way of a mispredicted branch.
  bool decoded{true};    ///< It is in the decoded micro-op cache.
  std::uint16_t wait{};  ///< Cycles until it is there, later than from the L1I.
  std::uint16_t walk{};  ///< Those of them for a page walk,
  std::uint16_t read{};  ///< and for its line, from beyond the L2.
  bool changes_code{};   ///< It stores to code that was fetched: what comes next is fetched anew.
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

  /// Who fetches code from now on, and how long lines take.
  virtual void fetch_by(CodeFetcher& fetcher, const TransferTimes& times) = 0;
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
