#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "timing/block_store.hpp"
#include "timing/pipeline.hpp"
#include "uarch/core_clock.hpp"
#include "uarch/profile_changes.hpp"

namespace vpmu::timing {

/// The cycles that a core of one micro-architecture takes, by the model of its pipeline.
///
/// The pipeline takes code in parts: from a line's beginning, or from where a branch or pause() leads, up to the next
/// branch, barrier or the line's end. These follow from what retires alone. So a guest that stops in the middle of a
/// part and goes on later is given the same cycles as one that does not: what has retired of a part is kept until the
/// rest has.
class CoreTimer final : public uarch::CoreClock {
 public:
  /// The most cycles for each instruction by which cycles() grows: what takes longer is told with the next ones. So
  /// whoever must stop before a number of cycles knows how many instructions may run.
  static constexpr std::uint64_t max_per_instruction = 512;
  /// Loads, and stores, of one instruction that are told apart; what others there are is added up.
  static constexpr std::size_t max_of_one = 4;

  explicit CoreTimer(const Microarchitecture& on) : on_{on}, pipeline_{on_}, blocks_{on_} { count(false); }

  void fetch_by(uarch::CodeFetcher& fetcher, const uarch::TransferTimes& times) override {
    fetcher_ = &fetcher;
    pipeline_.transfers_take(times);
    channel_ = times.channel;
  }
  uarch::BlockCode code_of(const SeenBlock& block) override;
  void retire(const uarch::BlockCode& code, std::size_t number, std::span<const uarch::ClockedAccess> accesses,
              const uarch::CodeArrival& arrival) override;
  void begin(const SeenBlock& block, std::uint64_t now, std::size_t first) override;
  void reach(std::uint64_t now) override;
  void access(bool store, const uarch::ClockedAccess& access, std::uint64_t now) override;
  void retire_to(std::uint64_t now) override;
  std::uint64_t cycles(std::uint64_t now) override;
  void visit_state(const uarch::StateVisitor& visit, std::uint64_t now) override;

  /// After `now` instructions something that the engine does not run takes that many cycles, when all that began before
  /// has retired.
  void pause(std::uint64_t now, unsigned cycles);
  /// From now on, after `now` instructions, the core's other thread runs and uses that much of it; null: it does not.
  /// Returns Pipeline::share_with(). The part that has begun ends here.
  CoreUse share_with(const CoreUse* other, std::uint64_t now);
  [[nodiscard]] bool is_sharing() const { return pipeline_.is_sharing(); }
  /// Instructions of the part that has not ended: cycles() may still grow by max_per_instruction for each.
  [[nodiscard]] std::uint64_t open() const { return open_.instructions; }
  /// Instructions, by where they stand, that have no row of their own: they take what their class does. The first
  /// max_forms_without_row forms by name (form_of()), as "bndmov sys,sys"; those in code for 16 and 32 bits have none.
  static constexpr std::size_t max_forms_without_row = 256;
  [[nodiscard]] std::uint64_t without_row() const { return without_row_; }
  [[nodiscard]] const std::map<std::string, std::uint64_t>& forms_without_row() const { return forms_without_row_; }
  /// Of the host's memory, that what is known of the guest's code takes: bounded, whatever code comes.
  [[nodiscard]] std::size_t kept_bytes() const {
    return blocks_.bytes() + note_bytes_ + older_note_bytes_ + pipeline_.kept_bytes();
  }
  /// Times that max_per_instruction was reached.
  [[nodiscard]] std::uint64_t delayed() const { return delayed_; }
  /// What totals() tells; all else is 0 there.
  [[nodiscard]] static PipelineQuantities told();
  /// At the end of the last part: what was counted while that was on, which it is not at first.
  [[nodiscard]] PipelineTotals totals() { return pipeline_.counts().totals; }
  void count(bool on) { pipeline_.count(on); }

 private:
  /// Where an access of a SeenBlock stands among those of its part's TimedBlock: its load and its store.
  struct Place {
    static constexpr std::uint16_t none = 0xFFFF;
    std::uint16_t load{none}, store{none};
  };
  /// Of an instruction of a block, or of its end.
  struct Step {
    std::uint16_t offset{};  ///< In bytes.
    std::uint8_t loads{}, stores{};
    bool ends_part{};  ///< It has a barrier.
    bool is_locked{};  ///< The line that it stores to, which is what is seen of it, is what it loads from.
  };
  /// The code of a part.
  struct PartCode {
    std::shared_ptr<const TimedBlock> block;
    bool is_direct{};  ///< The TimedBlock's accesses are those of the SeenBlock, one by one.
  };
  struct Note {
    const SeenBlock* of{};  ///< A block's note may be from another timer, which saw it before.
    mutable std::vector<uarch::CodePart> parts;
    mutable std::vector<PartCode> codes;  ///< Of the parts.
    mutable std::vector<Place> places;    ///< By the SeenBlock's accesses.
    mutable bool is_placed{};
    bool ends_in_branch{};
    std::uint8_t bits{};
    std::uint64_t rip{};
    std::vector<std::byte> bytes;
    std::vector<Step> steps;  ///< The last is the end.

    [[nodiscard]] std::size_t instructions() const { return steps.size() - 1; }
    /// Bytes of the host's.
    [[nodiscard]] std::size_t memory() const;
  };
  /// What an instruction does beyond its accesses, and what it accesses beyond what its form says: the elements of a
  /// string instruction or a gather. No time passes between them, so the latest of them tells when all are there.
  struct More {
    std::uint64_t bytes{}, late{};
    std::uint64_t fills{};        ///< For how long all their lines had a fill buffer.
    std::uint64_t from_memory{};  ///< Lines that came from there.
    bool changed_code{};          ///< It has stored to code that was fetched.

    void add(const TimedAccess& access) {
      add({.bytes = access.bytes,
           .late = access.late,
           .fills = is_fill(access) ? std::uint64_t{access.late} : 0,
           .from_memory = access.transfers.count_from(uarch::Transfers::memory)});
    }
    void add(const More& other) {
      bytes += other.bytes;
      late = std::max(late, other.late);
      fills += other.fills;
      from_memory += other.from_memory;
      changed_code |= other.changed_code;
    }
    /// Cycles that they take.
    [[nodiscard]] std::uint64_t busy(const Microarchitecture& on, unsigned channel) const;
  };
  /// What has retired of a part: instructions of one block, or, put together, of several.
  struct Open {
    std::shared_ptr<const Note> note;  ///< Null: see `bytes`.
    std::size_t first{}, instructions{};
    std::uint64_t rip{};
    std::uint8_t bits{};
    std::vector<std::byte> bytes;
    std::vector<TimedAccess> accesses;
    More more;
  };
  /// The accesses of an instruction that has not retired yet.
  struct Accessed {
    std::uint64_t now{};  ///< Instructions that retire before it.
    std::array<TimedAccess, max_of_one> loads, stores;
    std::uint8_t load_count{}, store_count{};
    More more;
  };
  std::shared_ptr<const Note> make_note(const SeenBlock& block);
  void count_without_row(std::span<const std::byte> code, std::uint8_t bits);
  /// Whether the block's index is that of its own note.
  static bool has(const std::vector<std::shared_ptr<const Note>>& notes, const SeenBlock& block);
  void keep_note(const SeenBlock& block);
  const std::shared_ptr<const Note>& note_of(const SeenBlock& block);
  static void place(const Note& note, const SeenBlock& block);
  std::span<const TimedAccess> placed(const Note& note, std::size_t number,
                                      std::span<const uarch::ClockedAccess> accesses);
  void arrive(std::size_t index);
  void take(std::size_t index, std::uint64_t now);
  void take_accesses(const Step& i, std::uint64_t now);
  void put_together();
  std::shared_ptr<const TimedBlock> open_block();
  void close();
  void tell(std::uint64_t instructions);

  Microarchitecture on_;
  Pipeline pipeline_;
  uarch::CodeFetcher* fetcher_{};
  unsigned channel_{};  ///< TransferTimes::channel.
  std::uint64_t without_row_{}, delayed_{};
  std::map<std::string, std::uint64_t> forms_without_row_;
  Open open_;
  bool has_arrived_{};  ///< The front end has come to the part that is open, or begins next,
  BlockRun run_;        ///< in this way.
  BlockStore blocks_;
  /// SeenBlock::note: a generation, and an index in those of it.
  std::vector<std::shared_ptr<const Note>> notes_, older_notes_;
  std::size_t note_bytes_{}, older_note_bytes_{};
  std::uint64_t generation_{1};
  std::shared_ptr<const Note> current_;  ///< The block that began last, of which `taken_` instructions have retired.
  std::vector<SeenCode> lines_;          ///< Its own.
  std::size_t taken_{};
  std::uint64_t begun_{};  ///< Instructions that retired before it.
  std::vector<Accessed> accessed_;
  std::vector<TimedAccess> scratch_;
};

/// The micro-architecture of that generation (GenerationDesc::name).
const Microarchitecture& microarchitecture_of(std::string_view generation);
/// The same with what the changes of the profile change of the core, too: the fill buffers.
Microarchitecture changed_core(std::string_view generation, const uarch::ProfileChanges& changes);

}  // namespace vpmu::timing
