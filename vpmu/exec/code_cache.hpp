#pragma once
#include <array>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "exec/core.hpp"
#include "exec/host_routine.hpp"

namespace vpmu::exec {

/// Decodes a block of 64-bit code that stands at `rip`: as many of the instructions in block.code as make one, and cuts
/// off what is left. An instruction that the engine does not know becomes an op that stops before it, and the last one
/// of its block. Fills in ops, counts, code and target. False when not even one whole instruction is there. Its ops use
/// `routines`.
bool decode_block(Block& block, HostRoutines& routines);

/// Decoded blocks, found again by where they run and what physical page they are from. Each is trusted for one epoch:
/// then its bytes are compared with what stands in memory, for the guest may have changed them where we did not see it.
class CodeCache {
 public:
  /// More blocks than that are thrown away, all at once.
  static constexpr std::size_t most_blocks = 1 << 16;
  /// So are they when more blocks than that are looked for in pages: a guest can put one in any number of them.
  static constexpr std::size_t most_watches = 4 * most_blocks;

  explicit CodeCache(HostCode* host_code) : routines_{host_code} {}
  /// The block at core.rip, ready to run in core.epoch; where somebody observes, one that tells of itself. Null: it
  /// cannot be fetched or decoded, core.stop saying why.
  Block* find(Core& core);
  /// Whether blocks were decoded from the page.
  [[nodiscard]] bool holds(GuestPhysical page) const { return pages_.contains(page.value()); }
  /// The page is about to be written: its blocks must be looked at again.
  void forget(Core& core, GuestPhysical page);
  [[nodiscard]] std::uint64_t decoded() const { return decoded_; }

 private:
  struct Key {
    std::uint64_t rip;
    std::uint64_t physical;
    bool observed;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& k) const { return (k.rip ^ k.physical >> 12) * 0x9E37'79B9'7F4A'7C15ULL >> 20; }
  };
  /// Where code may be run from: of the linear pages that have one place the one that was used last. Holds in its
  /// epoch.
  struct Page {
    std::uint64_t linear{};
    std::uint64_t epoch{};
    SeenPage seen{};
    const std::byte* host{};
  };
  static constexpr std::size_t page_entries = 64;

  [[nodiscard]] bool is_full(const Core& core) const;
  const Page* page_of(Core& core, std::uint64_t at);
  void drop_all(Core& core);
  Block* find_anew(Core& core);
  [[nodiscard]] static bool is_still_there(const Block& block, const Core& core, const Page& page);
  Block* take(Core& core, Block& block, const SeenPage& page);
  Block* decode(Core& core, Page page);
  void watch(Core& core, Block& block, GuestPhysical page);

  HostRoutines routines_;
  std::array<Page, page_entries> code_pages_{};
  std::unordered_map<Key, std::unique_ptr<Block>, Hash> blocks_;
  std::unordered_map<std::uint64_t, std::vector<Block*>> pages_;
  std::size_t watches_{};  ///< Entries of all pages_.
  std::uint64_t decoded_{};
};

}  // namespace vpmu::exec
