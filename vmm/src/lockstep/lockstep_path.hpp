#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "decode/instruction.hpp"
#include "exec/engine.hpp"
#include "memory/linear.hpp"

namespace vmm {

/// A place on a way that the engine went.
struct Place {
  std::uint64_t instructions{};  ///< From the beginning to it.
  std::uint64_t rip{};
  std::uint64_t times{};  ///< It came by here so often before.
  std::uint64_t
      undefined{};   ///< Status flags that no instruction has given a value that is the same on all processors.
  bool is_string{};  ///< A repeated string instruction: a breakpoint there may hit once for each element.

  /// Whether it is known how often a breakpoint there hits before.
  [[nodiscard]] bool is_findable() const { return !is_string || times == 0; }
};

/// The way that an engine went, by its branches, and where on it a breakpoint finds the vCPU again.
///
/// A way ends before an instruction whose result is not the same everywhere: one that depends on undefined flags, or
/// stores something of the processor's own.
class LockstepPath final : public vpmu::exec::Observer {
 public:
  /// `mnemonics`: how often each came up, for count().
  LockstepPath(const LinearMemory& memory, std::map<std::string_view, std::uint64_t>& mnemonics)
      : memory_{&memory}, mnemonics_{&mnemonics} {}

  /// The engine is going to run code from here.
  void begin(const vpmu::exec::CpuState& state);
  void saw(std::span<const vpmu::exec::Seen> all) override { tell(all, *this); }
  void branched(const vpmu::exec::SeenBranch& branch) override { branches_.push_back({branch.at, branch.to}); }
  void fetched(const vpmu::exec::SeenCode&) override {}
  void accessed(const vpmu::exec::SeenAccess&, std::uint64_t) override {}
  void retired(bool, bool) override {}
  void abandoned() override {}
  void flushed_line(const vpmu::exec::SeenFlush&) override {}
  void flushed() override {}
  /// And has stopped there, after so many instructions. False when they are not those between its branches, as a
  /// decoder of its own says.
  [[nodiscard]] bool end(std::uint64_t rip, std::uint64_t instructions);

  /// Whether it ends before the engine did, at such an instruction.
  [[nodiscard]] bool is_cut() const { return is_cut_; }
  /// The farthest place that is worth its price: each time that it came by there before costs an exit.
  [[nodiscard]] const Place& best() const { return best_; }
  /// Behind so many instructions; at most best().instructions.
  [[nodiscard]] Place place(std::uint64_t instructions) const;
  /// Adds the instructions on the way to best() to the mnemonics.
  void count();

 private:
  struct Item {
    std::uint64_t at;
    FlagUse flags;
    std::uint64_t* count;
    bool is_string;
    bool differs;  ///< Its result is not the same everywhere.
  };
  /// Code that runs from one branch to the next.
  struct Straight {
    std::vector<std::byte> bytes;
    std::vector<Item> items;
    std::uint64_t asked{};      ///< Of the flags that it finds.
    std::uint64_t kept{~0ULL};  ///< Of these: as it finds them.
    std::uint64_t undefined{};  ///< Behind it.
    bool ends_way{};
  };
  struct Here {
    const Straight* code{};
    std::uint64_t visits{};
    std::vector<Here*> around{};  ///< Those in which it begins, and so itself.
  };
  struct Branch {
    std::uint64_t at, to;
  };

  Here* straight_at(std::uint64_t rip);
  bool decode(std::uint64_t rip, Straight& code);
  const std::byte* page_at(std::uint64_t page);
  std::size_t bytes_at(std::uint64_t rip, std::span<std::byte> out);
  void find_around();
  [[nodiscard]] static bool has(const Straight& code, std::uint64_t rip);
  template <class Visit>
  void each_around(std::uint64_t rip, const Visit& visit);
  std::uint64_t times(std::uint64_t rip);
  void consider(const Place& place);
  void consider_last(const Here& here, std::uint64_t done, std::uint64_t undefined);
  bool walk(std::uint64_t instructions);

  const LinearMemory* memory_;
  std::map<std::string_view, std::uint64_t>* mnemonics_;
  vpmu::exec::CpuState begin_;
  std::vector<Branch> branches_;
  std::vector<Here*> way_;                             ///< Straight after straight; of the last one maybe only a part.
  std::map<std::uint64_t, Here> here_;                 ///< By where they begin: those on the way.
  std::unordered_map<std::uint64_t, Straight> known_;  ///< Of earlier ways.
  std::unordered_map<std::uint64_t, const std::byte*>
      pages_;                ///< Of code, by linear address; null where there is none.
  std::uint64_t longest_{};  ///< Bytes from the first to the last instruction of those on the way.
  bool is_cut_{};
  Place best_{};
  std::int64_t best_score_{};
};

}  // namespace vmm
