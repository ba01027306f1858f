#pragma once
#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "vpmu/address.hpp"
#include "vpmu/counter.hpp"
#include "vpmu/observer.hpp"

namespace vmm {

/// A block of code, wherever a process has it.
struct CodePlace {
  std::uint64_t rip{};  ///< The linear address of its first instruction.
  /// Checksum of the bytes of its page when it first ran there; 0: of the kernel's code, or not known.
  std::uint64_t page{};
  auto operator<=>(const CodePlace&) const = default;
  [[nodiscard]] bool is_kernels() const { return rip >> 63U != 0; }
};

/// An event whose places are wanted: that counter of one of the plans that are counted beside the PMU's.
struct CodeEvent {
  std::size_t plan{};
  vpmu::CounterId counter;
};

/// Counts events by the blocks of code in which they happen, all of them: an observer between the engine and the one
/// that it would have otherwise. For one vCPU; used on its thread.
class CodeCounts final : public vpmu::Observer {
 public:
  /// Blocks beyond are counted as one, whose address is 0.
  static constexpr std::size_t max_places = 1U << 20U;
  /// A word of 8 bytes of physical memory; empty where there is no RAM.
  using ReadWord = std::function<std::optional<std::uint64_t>(vpmu::GuestPhysical at)>;
  /// How an event is counted.
  struct Column {
    /// What has been counted when `now` instructions have retired; empty: its places are not known.
    std::function<std::uint64_t(std::uint64_t now)> total{};
    bool user{}, kernel{};    ///< Of which code.
    bool are_instructions{};  ///< Those that others than the engine run count, too.
  };

  CodeCounts(std::vector<CodeEvent> events, ReadWord read)
      : events_{std::move(events)}, read_{std::move(read)}, columns_(events_.size()), last_(events_.size()) {
    (void)add_place({});
  }

  [[nodiscard]] const std::vector<CodeEvent>& events() const { return events_; }
  /// Whether what follows is counted.
  void collect(bool does) { collects_ = does; }
  /// All counts become 0.
  void clear() { std::ranges::fill(counts_, 0); }
  /// Calls `visit(place, counts)` for each block; the counts are by event.
  void visit(const std::function<void(const CodePlace&, std::span<const std::uint64_t>)>& visit) const;
  /// Whether the places of that event are known.
  [[nodiscard]] bool tells(std::size_t event) const { return columns_[event].total != nullptr; }

  // For the source.

  /// From here on each event is counted so, and `next` observes, too, if it is not null. `now` is Engine::observed().
  void begin(std::vector<Column> columns, vpmu::Observer* next, std::uint64_t now);
  /// The engine has run so far: another may have its turn.
  void ran(std::uint64_t now);
  /// Another than the engine has run an instruction. With `now`, Engine::observed(), what has passed meanwhile is that
  /// instruction's; without it, of what comes next.
  void ran_elsewhere(std::uint64_t rip, std::optional<std::uint64_t> now);

  void saw(std::span<const vpmu::Seen> all) override;
  void saw_blocks(vpmu::SeenBlocks& all) override;
  void begun(const vpmu::SeenBlock& block, std::uint64_t now) override;
  void fetched(const vpmu::SeenCode& code) override;
  void accessed(const vpmu::SeenAccess& access, std::uint64_t now) override;
  void retired(bool load, bool store) override;
  void branched(const vpmu::SeenBranch& branch) override;
  void abandoned() override;
  void flushed_line(const vpmu::SeenFlush& flush) override;
  void flushed(const vpmu::TlbFlush& flush) override;
  void remapped() override;

 private:
  /// A block, where a page of physical memory has it.
  struct Key {
    std::uint64_t rip{}, physical{};
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      constexpr std::uint64_t odd = 0x9E37'79B9'7F4A'7C15;
      return static_cast<std::size_t>((key.rip ^ key.physical << 20U) * odd >> 20U);
    }
  };
  using Place = std::uint32_t;
  struct Recent {
    Key key;
    Place place{};
  };

  Place place_of(const vpmu::SeenBlock& block);
  Place find(const Key& key);
  Place add_place(const CodePlace& place);
  [[nodiscard]] std::uint64_t checksum_of(std::uint64_t page) const;
  void end_block(std::uint64_t now);

  std::vector<CodeEvent> events_;
  ReadWord read_;
  std::vector<Column> columns_;      ///< By event.
  std::vector<std::uint64_t> last_;  ///< Their totals when the block began.
  vpmu::Observer* next_{};
  bool collects_{};
  bool is_between_runs_{};
  Place open_{};  ///< The block that runs.
  std::vector<CodePlace> places_;
  std::vector<std::uint64_t> counts_;  ///< By place, and then by event.
  std::unordered_map<Key, Place, Hash> found_;
  std::unordered_map<std::uint64_t, std::uint64_t> pages_;  ///< Of physical memory, by the page that code believes in.
  std::unordered_map<Key, std::uint64_t, Hash> checksums_;  ///< By page.
  static constexpr std::size_t recent_places = 4096;
  std::array<Recent, recent_places> recent_;
};

}  // namespace vmm
