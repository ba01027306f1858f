#pragma once
#include <array>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "exec/blocks/block_arena.hpp"
#include "exec/host/host_routine.hpp"
#include "exec/memory/address_spaces.hpp"
#include "exec/memory/code_pages.hpp"
#include "exec/memory/code_slots.hpp"
#include "exec/state/core.hpp"

namespace vpmu::exec {

/// Decoded blocks, by the physical page that they are from: wherever it is mapped, its code is decoded and compiled
/// once.
///
/// Blocks may run as long as their page is fresh, and where it is so: see Core::stale and Core::base. When
/// translations may have changed, no page is fresh. Then each page is checked before its first block runs: where it is
/// mapped, and, if somebody may have written to it, whether its bytes are those that blocks were decoded from.
class CodeCache {
 public:
  /// When blocks need more memory than this, all are discarded.
  static constexpr std::size_t max_bytes = 128 << 20;
  /// They are also discarded when more slots than this are registered for writes to pages: a guest can make one block
  /// watch any number of pages.
  static constexpr std::size_t max_watches = 1 << 19;

  CodeCache(HostCode* host_code, Platform& guest) : routines_{host_code, &guest} {}
  /// The block at core.rip, ready to run; with an observer, one that reports to it. Null: it cannot be fetched or
  /// decoded; core.stop says why.
  Block* find(Core& core);
  /// The same, if it was found lately; null: call find().
  [[nodiscard]] static Block* known(const Core& core) {
    Block* const block = core.jumps[jump_entry(core.rip)];
    return block != nullptr && core.is_fresh(*block, core.rip) ? block : nullptr;
  }
  /// No page is fresh any more, in any address space, and somebody may have written to any of them.
  void doubt(Core& core);
  /// The page's translation, perhaps a large page's, is forgotten in all address spaces.
  void doubt_page(Core& core, std::uint64_t linear);
  /// The guest goes to the address space of this CR3. `keeps`: and nothing that was known there has changed.
  void enter_space(Core& core, const PagingState& next, bool keeps);
  /// The pages that blocks were decoded from.
  [[nodiscard]] CodePages& pages() { return watched_; }
  [[nodiscard]] AddressSpaces& spaces() { return spaces_; }
  [[nodiscard]] std::uint64_t decoded() const { return decoded_; }

 private:
  /// A page as code is run from it.
  struct PageKey {
    std::uint64_t linear{};  ///< Its number, of blocks that depend on it: observed or narrow ones. Of others 0.
    SeenPage seen;
    bool observed{};
    bool classed{};  ///< Core::counts_classes.
    CodeMode mode{};
    bool operator==(const PageKey&) const = default;
  };
  struct Page {
    PageKey key;
    CodeSlot slot{};
    const std::byte* host{};                   ///< Where it was at the last check.
    std::array<std::byte, page_size> bytes{};  ///< Its bytes then: blocks are decoded from these.
    BlockTable blocks;
  };
  /// Neighbours are often mapped to neighbours: many pages have the same difference of the two addresses.
  static std::size_t mixed(std::uint64_t a, std::uint64_t b) {
    constexpr std::uint64_t golden = 0x9E37'79B9'7F4A'7C15ULL;
    return (a * golden ^ b / page_size) * golden >> 20;
  }
  struct Hash {
    std::size_t operator()(const PageKey& k) const { return mixed(k.linear, k.seen.physical); }
  };
  static constexpr std::size_t page_entries = 64;
  static constexpr std::size_t model_entries = std::size_t{1} << 16;
  const Block*& model_of(std::uint64_t physical) { return models_[mixed(physical, 0) % model_entries]; }

  [[nodiscard]] bool is_full(const Core& core) const;
  void drop_all(Core& core);
  Page* page_of(Core& core, std::uint64_t at);
  static void look_at(Core& core, Page& page);
  CodeSlot new_slot(Core& core, const SeenPage& seen, bool in_two);
  static void make_stale(Core& core, CodeSlot slot);
  static void make_fresh(Core& core, CodeSlot slot, std::uint64_t at);
  Block* find_anew(Core& core);
  Block* decode(Core& core, Page& page);
  static void outdate(Core& core, Block& block);
  Block* decode_anew(Core& core, Block* before, Page& page, std::span<const std::byte> code);
  static Block* take(Core& core, Block& block);

  HostRoutines routines_;
  std::unordered_map<PageKey, std::unique_ptr<Page>, Hash> pages_;
  std::array<Page*, page_entries> recent_{};  ///< Each place has the last used of its linear pages.
  BlockArena blocks_;
  DecodedBlock decoding_;
  /// Blocks by where in memory their code is, to copy: what an observer is told of them differs by their address.
  std::vector<const Block*> models_ = std::vector<const Block*>(model_entries);
  CodePages watched_;
  AddressSpaces spaces_;
  CodeSlots slots_;
  std::uint64_t decoded_{};
};

}  // namespace vpmu::exec
