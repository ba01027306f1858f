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

/// A place on the path that the engine ran.
struct Place {
  std::uint64_t instructions{};  ///< From the path's beginning to it.
  std::uint64_t rip{};
  std::uint64_t times{};  ///< How often the path has come by here before.
  std::uint64_t
      undefined{};   ///< Status flags that no instruction has given a value that is the same on all processors.
  bool is_string{};  ///< A repeated string instruction: a breakpoint there may hit once for each element.

  /// Whether the number of earlier hits of a breakpoint there is known.
  [[nodiscard]] bool is_findable() const { return !is_string || times == 0; }
};

/// The path that an engine ran, by its branches, and the places on it at which a breakpoint can stop KVM's vCPU.
///
/// A path ends before an instruction whose result is not the same on all processors: one that depends on undefined
/// flags, or stores something specific to the processor.
class LockstepPath final : public vpmu::Observer {
 public:
  /// `mnemonics`: how often each came up, for count().
  LockstepPath(const LinearMemory& memory, std::map<std::string_view, std::uint64_t>& mnemonics)
      : memory_{&memory}, mnemonics_{&mnemonics} {}

  /// The engine is going to run code from here.
  void begin(const vpmu::exec::CpuState& state);
  void saw(std::span<const vpmu::Seen> all) override { tell(all, *this); }
  void branched(const vpmu::SeenBranch& branch) override { branches_.push_back({branch.at, branch.to}); }
  void fetched(const vpmu::SeenCode&) override {}
  void accessed(const vpmu::SeenAccess&, std::uint64_t) override {}
  void retired(bool, bool) override {}
  void abandoned() override {}
  void flushed_line(const vpmu::SeenFlush&) override {}
  void flushed(const vpmu::TlbFlush&) override {}
  /// The engine has stopped at `rip` after `instructions`. False if that does not match the code between its branches,
  /// which is decoded here once more.
  [[nodiscard]] bool end(std::uint64_t rip, std::uint64_t instructions);

  /// Whether the path ends before the engine's end, at such an instruction.
  [[nodiscard]] bool is_cut() const { return is_cut_; }
  /// The farthest place that is worth its price: each time that the path came by before costs an exit.
  [[nodiscard]] const Place& best() const { return best_; }
  /// The place after so many instructions, at most best().instructions.
  [[nodiscard]] Place place(std::uint64_t instructions) const;
  /// Adds the instructions on the way to best() to the mnemonics.
  void count();

 private:
  struct Item {
    std::uint64_t at;
    FlagUse flags;
    std::uint64_t* count;
    bool is_string;
    bool differs;  ///< Its result is not the same on all processors.
  };
  /// Straight-line code from one branch to the next.
  struct Straight {
    std::vector<std::byte> bytes;
    std::vector<Item> items;
    std::uint64_t asked{};      ///< Flags that it reads as they are at its beginning.
    std::uint64_t kept{~0ULL};  ///< Flags that it does not change.
    std::uint64_t undefined{};  ///< Flags that are undefined at its end.
    bool ends_way{};
  };
  struct Here {
    const Straight* code{};
    std::uint64_t visits{};
    std::vector<Here*> around{};  ///< Those that have its first instruction, itself included.
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
  std::vector<Here*> way_;                             ///< Straight after straight; of the last, perhaps only a part.
  std::map<std::uint64_t, Here> here_;                 ///< Those on the path, by where they begin.
  std::unordered_map<std::uint64_t, Straight> known_;  ///< Of earlier paths, too.
  std::unordered_map<std::uint64_t, const std::byte*>
      pages_;            ///< Of code, by linear address; null where there is none.
  std::uint64_t max_{};  ///< Most bytes from the first to the last instruction, of those on the path.
  bool is_cut_{};
  Place best_{};
  std::int64_t best_score_{};
};

}  // namespace vmm
