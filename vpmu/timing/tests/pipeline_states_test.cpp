#include "timing/pipeline_states.hpp"

#include <gtest/gtest.h>

#include <array>

#include "any_blocks.hpp"

namespace vpmu::timing {
namespace {

using namespace test;

/// Runs of a few blocks, most of them as in a program of loops: the same again.
class AnyLoops {
 public:
  explicit AnyLoops(const Microarchitecture& on) : any_{on} {
    const auto quick = timed_block(
        std::as_bytes(Assembled{X86("mov (%r8), %rax; add $1, %rbx; nop; mov %rcx, (%r9); add $1, %rdx; nop")}), on);
    for (TimedBlockPtr& block : blocks_) {
      auto code = any_.code();
      code.resize(1 + any_.random() % std::min<std::size_t>(code.size(), 8));
      // Only quick ones fill the reorder buffer.
      if (any_.random() % 2 == 0)
        for (TimedInstruction& one : code) one = quick->at(any_.random() % quick->size());
      block = make_block(code, any_.random(), on);
    }
    begin_loop();
  }

  struct Run {
    TimedBlockPtr block;
    std::vector<TimedAccess> accesses;
    BlockRun how;
  };
  /// Another loop, or a run that is not of it, from time to time.
  Run next() {
    if (any_.random() % 10000 == 0) begin_loop();
    if (any_.random() % 1024 == 0) return run();
    Run again = loop_[next_++ % loop_.size()];
    // What is accessed moves on; often that changes nothing.
    for (TimedAccess& access : again.accesses) {
      access.physical += 8 * (next_ / loop_.size() * 64);
      if (are_transferred_) put_transfers(access);
    }
    return again;
  }
  std::uint64_t random() { return any_.random(); }

 private:
  Run run() {
    Run made{.block = blocks_[any_.random() % blocks_.size()], .how = any_.run()};
    made.accesses = any_.accesses(made.block->accesses().size());
    return made;
  }
  void begin_loop() {
    loop_.clear();
    for (std::size_t left = 1 + any_.random() % 6; left != 0; --left) loop_.push_back(run());
    // Some run out of the micro-op cache as quickly as the buffers for what has not retired allow.
    if (any_.random() % 2 == 0)
      for (Run& one : loop_) {
        one.how = {.decoded = true};
        for (TimedAccess& access : one.accesses) {
          access.late = any_.random() % 8 == 0 ? 200 : 0;
          access.level = any_.level();
        }
      }
    loop_.front().how.taken = true;
    are_transferred_ = any_.random() % 4 == 0;
  }
  /// Lines begin their way with those that are fills, alone or with others, and some wait for one that did so before.
  void put_transfers(TimedAccess& access) {
    using enum uarch::Transfers::From;
    const bool is_own = is_fill(access), is_alone = any_.random() % 8 != 0;
    if (is_own)
      access.transfers.begin(++number_, access.level == HitLevel::dram ? memory
                                        : access.level == HitLevel::l2 ? l2
                                                                       : l3);
    if (!is_alone) access.transfers.begin(++number_, any_.random() % 2 == 0 ? memory : l3);
    if (any_.random() % 32 == 0)
      access.transfers.wait_for(uarch::Transfers::name(static_cast<std::uint32_t>(number_ - any_.random() % 4)));
  }

  AnyBlocks any_;
  std::array<TimedBlockPtr, 12> blocks_;
  std::vector<Run> loop_;
  std::size_t next_{};
  bool are_transferred_{};
  std::uint32_t number_{100};
};

// The oracle is a pipeline that computes each run.
TEST(PipelineStates, ARunThatComesAgainDoesWhatItDid) {
  for (const Microarchitecture* const on : {&nehalem, &ivy_bridge, &haswell, &skylake}) {
    AnyLoops loops{*on};
    Pipeline repeats{*on}, computes{*on};
    computes.remember_states(false);
    for (Pipeline* const one : {&repeats, &computes}) one->transfers_take({.from = {0, 12, 44, 200}, .channel = 20});
    constexpr std::uint64_t runs = 200'000;
    bool counting = true;
    for (std::uint64_t n = 0; n < runs; ++n) {
      const AnyLoops::Run run = loops.next();
      repeats.retire(run.block, run.accesses, run.how);
      computes.retire(run.block, run.accesses, run.how);
      ASSERT_EQ(repeats.now(), computes.now()) << n;
      switch (loops.random() % 1024) {
        case 0: ASSERT_EQ(state_of(repeats), state_of(computes)) << n; break;
        case 1: set_state(repeats, state_of(computes)); break;
        case 2:
          counting = !counting;
          repeats.count(counting);
          computes.count(counting);
          break;
        case 3:
          repeats.pause(100);
          computes.pause(100);
          break;
        case 4:
          ASSERT_EQ(repeats.peek(*run.block, run.accesses, run.how), computes.peek(*run.block, run.accesses, run.how));
          break;
        default: break;
      }
    }
    EXPECT_EQ(state_of(repeats), state_of(computes));
    EXPECT_GT(repeats.repeated(), runs / 8);
    EXPECT_EQ(computes.repeated(), 0U);
  }
}

// What has left a full reorder buffer last still says when the next micro-op has room.
TEST(PipelineStates, AFullReorderBufferIsPartOfThem) {
  const auto load = timed_block(std::as_bytes(Assembled{X86("mov (%r8), %rax; nop")}), skylake);
  const auto nops = timed_block(std::as_bytes(Assembled{X86(".rept 21; nop; .endr")}), skylake);
  ASSERT_TRUE(load && nops);
  const TimedBlockPtr first = make_block(*load, 0, skylake), others = make_block(*nops, 8, skylake);
  Pipeline repeats{skylake}, computes{skylake};
  computes.remember_states(false);
  for (unsigned n = 0; n < 100'000; ++n) {
    const BlockRun how{.taken = n % 7 == 0, .decoded = true};
    const std::vector late{at(0, 8, static_cast<std::uint16_t>(n % 7 == 0 ? 100 + n / 70 % 3 : 0))};
    for (Pipeline* const pipeline : {&repeats, &computes}) {
      pipeline->retire(first, late, how);
      pipeline->retire(others, {}, {.decoded = true});
    }
    ASSERT_EQ(repeats.now(), computes.now()) << n;
    if (n % 100 == 0) {
      ASSERT_EQ(state_of(repeats), state_of(computes)) << n;
    }
  }
  EXPECT_GT(computes.counts().totals[PipelineQuantity::reorder_full].sum, 10'000U);
  EXPECT_GT(repeats.repeated(), 10'000U);
}

// Code that never comes to where it was: what is kept of it is bounded, and so is what looking for it costs.
TEST(PipelineStates, TheyTakeBoundedMemory) {
  AnyBlocks any{skylake};
  const auto instructions = timed_block(std::as_bytes(Assembled{X86("imul %rax, %rax; mov (%r8), %rdx")}), skylake);
  ASSERT_TRUE(instructions);
  const TimedBlockPtr block = make_block(*instructions, 0, skylake);
  Pipeline pipeline{skylake};
  std::size_t most = 0;
  std::uint64_t fewer = 0;
  for (unsigned n = 0; n < 3'000'000; ++n) {
    // Often enough the same for some steps to be worth recording.
    const bool same = n % 4096 < 3968;
    const std::vector accesses{at(0, 8, static_cast<std::uint16_t>(same ? 0 : any.random() % 1000))};
    pipeline.retire(block, accesses, {.taken = true, .decoded = true});
    const std::size_t now = pipeline.kept_bytes();
    fewer += now < most ? 1 : 0;
    most = std::max(most, now);
  }
  EXPECT_LT(most, 2 * PipelineStates::max_bytes);
  EXPECT_GT(fewer, 0U) << "what was kept was forgotten at least once";
  EXPECT_GT(pipeline.repeated(), 1'000'000U);
}

}  // namespace
}  // namespace vpmu::timing
