#pragma once
#include <span>
#include <utility>
#include <vector>

#include "uarch/core_clock.hpp"
#include "vpmu/observer.hpp"

namespace vpmu::exec::bench {

/// Tells a clock of a program whose loads all hit the L1, whose code is all decoded, and whose branches are all
/// predicted: what the clock alone costs.
class HitTimer final : public Observer, private uarch::CodeFetcher {
 public:
  explicit HitTimer(uarch::CoreClock& clock) : clock_{clock} { clock.fetch_by(*this, {}); }

  void saw(std::span<const Seen> all) override { tell(all, *this); }
  void saw_blocks(SeenBlocks& all) override {
    clock_.retire_to(all.now);
    const std::uint64_t* address = all.addresses.data();
    for (const SeenBlock* const block : all.blocks) {
      if (all.branch.kind != BranchKind::none) branched(all.branch_to(*block));
      accesses_.clear();
      for (const BlockAccess& a : block->accesses) accesses_.push_back(hit(all.physical(*address++), a.bytes));
      const uarch::BlockCode code = clock_.code_of(*block);
      std::size_t number = 0, done = 0;
      for (; number < code.parts.size() && code.parts[number].is_whole; ++number) {
        const uarch::CodePart& part = code.parts[number];
        clock_.retire(code, number, std::span{accesses_}.subspan(part.first_access, part.accesses), arrival());
        done += part.instructions;
      }
      if (done != block->instructions) rest(*block, all.now, done);
      all.now += block->instructions;
      all.branch = block->branch;
    }
  }
  void begun(const SeenBlock& block, std::uint64_t now) override { clock_.begin(block, now, 0); }
  void fetched(const SeenCode& /*code*/) override {}
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    clock_.reach(now);
    clock_.access(a.store, hit(a.physical, static_cast<std::uint16_t>(a.bytes)), now);
  }
  void retired(bool /*load*/, bool /*store*/) override {}
  void branched(const SeenBranch& branch) override {
    clock_.retire_to(branch.now);
    is_taken_ = branch.taken;
  }
  void abandoned() override {}
  void flushed_line(const SeenFlush& /*flush*/) override {}
  void flushed(const TlbFlush&) override {}

 private:
  static uarch::ClockedAccess hit(std::uint64_t physical, std::uint16_t bytes) {
    return {.physical = physical, .bytes = bytes, .level = HitLevel::l1};
  }
  uarch::CodeArrival arrival() { return {.taken = std::exchange(is_taken_, false)}; }
  uarch::CodeArrival arrive(std::uint64_t /*rip*/, const SeenCode& /*line*/) override { return arrival(); }
  /// What belongs to a part that goes on in the next block.
  void rest(const SeenBlock& block, std::uint64_t now, std::size_t first) {
    clock_.begin(block, now, first);
    for (std::size_t n = 0; n < block.accesses.size(); ++n) {
      const BlockAccess& a = block.accesses[n];
      if (a.instruction < first) continue;
      clock_.reach(now + a.instruction);
      if (a.both || !a.is(Seen::store)) clock_.access(false, accesses_[n], now + a.instruction);
      if (a.both || a.is(Seen::store)) clock_.access(true, accesses_[n], now + a.instruction);
    }
    clock_.retire_to(now + block.instructions);
  }

  uarch::CoreClock& clock_;
  bool is_taken_{};
  std::vector<uarch::ClockedAccess> accesses_;
};

}  // namespace vpmu::exec::bench
