#pragma once
#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/core.hpp"
#include "exec/host_routine.hpp"

namespace vpmu::exec {

/// Decodes a block of code of its mode that stands at `rip`: as many of the instructions in block.code as make one, and
/// cuts off what is left. An instruction that the engine does not know becomes an op that stops before it, and the last
/// one of its block. Fills in ops, counts, code and target. False when not even one whole instruction is there. Its ops
/// use `routines`.
bool decode_block(Block& block, HostRoutines& routines);

/// Decoded blocks, found again by where they run and what physical page they are from.
///
/// They are trusted as long as their page is fresh: see Core::stale. When translations may have changed no page is.
/// Then each is looked at before its first block runs: where it is mapped, and whether its bytes are those that blocks
/// were decoded from, for the guest may have changed them where we did not see it.
class CodeCache {
 public:
  /// More blocks than that are thrown away, all at once.
  static constexpr std::size_t most_blocks = 1 << 17;
  /// So are they when more slots than that are to be told of writes to pages: a guest can put one block in any number
  /// of them.
  static constexpr std::size_t most_watches = 4 * most_blocks;

  CodeCache(HostCode* host_code, Platform& guest) : routines_{host_code, &guest} {}
  /// The block at core.rip, ready to run; where somebody observes, one that tells of itself. Null: it cannot be fetched
  /// or decoded, core.stop saying why.
  Block* find(Core& core);
  /// No page is fresh any more.
  void doubt(Core& core) const;
  /// Whether blocks were decoded from the page.
  [[nodiscard]] bool holds(GuestPhysical page) const { return watched_.contains(page.value()); }
  /// The page is about to be written: its blocks must be looked at again.
  void forget(Core& core, GuestPhysical page);
  [[nodiscard]] std::uint64_t decoded() const { return decoded_; }

 private:
  /// A page as code is run from it.
  struct PageKey {
    std::uint64_t linear{};
    SeenPage seen;
    bool observed{};
    CodeMode mode{};
    bool operator==(const PageKey&) const = default;
  };
  struct Page {
    PageKey key;
    CodeSlot slot{};
    const std::byte* host{};                   ///< Where it was when it was looked at.
    std::array<std::byte, page_size> bytes{};  ///< What stood there: its blocks are decoded from that.
    std::vector<Block*> blocks;                ///< Those that lie in it alone.
  };
  struct BlockKey {
    std::uint64_t rip;
    const Page* page;
    bool operator==(const BlockKey&) const = default;
  };
  /// Neighbours are mapped to neighbours: the difference of the two alone would be that of many pages.
  static std::size_t mixed(std::uint64_t a, std::uint64_t b) {
    constexpr std::uint64_t golden = 0x9E37'79B9'7F4A'7C15ULL;
    return (a * golden ^ b / page_size) * golden >> 20;
  }
  struct Hash {
    std::size_t operator()(const PageKey& k) const { return mixed(k.linear, k.seen.physical); }
    std::size_t operator()(const BlockKey& k) const { return mixed(k.rip, k.page->key.seen.physical); }
  };
  static constexpr std::size_t page_entries = 64;

  [[nodiscard]] bool is_full(const Core& core) const;
  void drop_all(Core& core);
  Page* page_of(Core& core, std::uint64_t at);
  static void look_at(Core& core, Page& page);
  CodeSlot new_slot(Core& core);
  static void make_fresh(Core& core, CodeSlot slot);
  Block* find_anew(Core& core);
  Block* decode(Core& core, Page& page);
  bool decode_anew(Core& core, Block& block, const Page& page, std::span<const std::byte> code);
  static Block* take(Core& core, Block& block);
  void watch(Core& core, CodeSlot slot, GuestPhysical page);

  HostRoutines routines_;
  std::unordered_map<PageKey, std::unique_ptr<Page>, Hash> pages_;
  std::array<Page*, page_entries> recent_{};  ///< Of the linear pages that have one place the one that was used last.
  std::unordered_map<BlockKey, std::unique_ptr<Block>, Hash> blocks_;
  std::unordered_map<std::uint64_t, std::vector<CodeSlot>> watched_;  ///< By physical page: whom to tell of a write.
  std::size_t watches_{};                                             ///< Entries of all of these.
  unsigned slots_{1};                                                 ///< Used so far.
  std::uint64_t decoded_{};
};

}  // namespace vpmu::exec
