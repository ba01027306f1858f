// Processors without KVM that take turns: what they see of each other, and that each run is the same.
#include <atomic>
#include <chrono>
#include <thread>

#include "exec/tests/fixtures/assembled.hpp"
#include "soft/soft_board.hpp"
#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

/// Two processors, each with its own code and stack, that share all memory.
class SeveralProcessors : public SystemInstructions {
 protected:
  static constexpr std::uint64_t second_code = code_at + 0x400, second_stack = stack_top - 0x800;
  static constexpr std::uint64_t last_tsc = data_at + 8, errors = data_at + 16;
  static constexpr std::uint64_t max_ticks = 10'000'000;

  void make(const Schedule& schedule, SoftStart second = {}, unsigned threads_per_core = 1) {
    backends_.clear();
    board_ = std::make_unique<SoftBoard>(nullptr, schedule, threads_per_core);
    const SoftStart start{.sregs = guest_.backend.special, .regs = guest_.backend.registers, .compiling = {.after = 2}};
    add(start);
    if (!second.waits_for_start) {
      second = start;
      second.regs.rip = second_code;
      second.regs.rsp = second_stack;
    }
    second.id = 1;
    second.sregs.apic_base = 0xFEE0'0800;
    add(second);
  }
  void add(const SoftStart& start) {
    backends_.push_back(std::make_unique<SoftBackend>(memory_, cpuid_, start, board_.get()));
    backends_.back()->stop_after(max_ticks);
  }
  /// Runs all until they halt; false if one has run for too long.
  bool run_all() {
    std::atomic<bool> all_halted{true};
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < backends_.size(); ++id)
      threads.emplace_back([&, id] {
        const auto exit = backends_[id]->run();
        if (exit && !std::holds_alternative<Interrupted>(*exit)) {
          all_halted = std::holds_alternative<Hlt>(*exit);
          if (std::holds_alternative<TimeUp>(*exit)) saved_ = {board_->clock.image(), board_->turns.image()};
          for (unsigned other = 0; other < backends_.size(); ++other)
            if (other != id) board_->turns.kicked(other);
        }
        board_->turns.leave(id);
      });
    for (std::thread& thread : threads) thread.join();
    return all_halted;
  }

  LinearMemory memory_{guest_.ram, [this](vpmu::GuestPhysical page) {
                         for (auto& backend : backends_) backend->written(page);
                       }};
  std::unique_ptr<SoftBoard> board_;
  std::pair<MachineClock::Image, RoundRobin::Image> saved_;  ///< Set when the time of one is up.
  std::vector<std::unique_ptr<SoftBackend>> backends_;
};

/// Increments data_at, which is 900000H, 3000 times, without LOCK.
const std::vector<std::uint8_t> increments =
    X86("mov $3000, %ecx; "
        "1: mov 0x900000, %rax; "
        "inc %rax; "
        "mov %rax, 0x900000; "
        "dec %ecx; jne 1b; hlt");

TEST_F(SeveralProcessors, RacesEndAsTheScheduleSays) {
  guest_.store_code(code_at, increments);
  guest_.store_code(second_code, increments);
  const auto counted = [&](const Schedule& schedule) {
    guest_.store_word(data_at, 0);
    make(schedule);
    EXPECT_TRUE(run_all());
    return guest_.load_word(data_at);
  };
  EXPECT_EQ(counted({.turn = 1'000'000}), 6000U) << "one after the other";
  const std::uint64_t first = counted({.turn = 50, .seed = 1});
  EXPECT_LT(first, 6000U) << "some are lost";
  EXPECT_GE(first, 3000U);
  EXPECT_EQ(counted({.turn = 50, .seed = 1}), first);
  EXPECT_NE(counted({.turn = 50, .seed = 2}), first);
}

// Two threads of a core: each knows what the other has run, and how much of it while it was halted itself.
TEST_F(SeveralProcessors, KnowTheirSiblings) {
  constexpr std::uint64_t each = 1 + 3000 * 5;  // and HLT
  guest_.store_code(code_at, increments);
  guest_.store_code(second_code, X86("hlt"));
  for (const unsigned threads : {1U, 2U}) {
    make({.turn = 1000}, {}, threads);
    ASSERT_TRUE(run_all());
    const Sibling seen = backends_[1]->sibling();
    const bool has = threads == 2;
    EXPECT_EQ(seen.instructions[0], has ? each + 1 : 0U);
    EXPECT_EQ(seen.instructions[1], 0U) << "all at CPL 0";
    EXPECT_GE(seen.alone[0], has ? each - 1000 : 0U) << "the other is halted from its first turn on";
    EXPECT_LE(seen.alone[0], has ? each + 1 : 0U);
    EXPECT_EQ(backends_[0]->sibling().instructions[0], has ? 1U : 0U);
    EXPECT_EQ(backends_[0]->sibling().alone[0], 0U);
  }
}

// Saves one race at many moments, also within a turn, and continues it on new processors.
TEST_F(SeveralProcessors, GoOnFromWhereTheyWereSaved) {
  guest_.store_code(code_at, increments);
  guest_.store_code(second_code, increments);
  const Schedule schedule{.turn = 50, .seed = 3};
  guest_.store_word(data_at, 0);
  make(schedule);
  ASSERT_TRUE(run_all());
  const std::uint64_t counted = guest_.load_word(data_at), tsc = *backends_[0]->tsc();
  std::uint64_t in_turn_of_the_other = 0;
  for (unsigned moment = 0; moment < 24; ++moment) {
    const unsigned who = moment % 2;
    guest_.store_word(data_at, 0);
    make(schedule);
    backends_[who]->stop_after(1 + 613 * moment);
    ASSERT_FALSE(run_all());
    const std::array images{backends_[0]->save(), backends_[1]->save()};
    // With the same seed the race ends the same, with another seed otherwise.
    const std::uint64_t half_way = guest_.load_word(data_at);
    for (const std::uint64_t seed : {4U, 3U}) {
      guest_.store_word(data_at, half_way);
      make({.turn = 50, .seed = seed});
      ASSERT_TRUE(board_->clock.restore(saved_.first, 2));
      ASSERT_TRUE(board_->turns.restore(saved_.second));
      for (unsigned id = 0; id < 2; ++id) ASSERT_TRUE(backends_[id]->restore(images.at(id)));
      ASSERT_TRUE(run_all());
      const bool same = guest_.load_word(data_at) == counted && *backends_[0]->tsc() == tsc;
      EXPECT_EQ(same, seed == 3) << "moment " << moment;
    }
    in_turn_of_the_other += saved_.second.owner;
  }
  EXPECT_GT(in_turn_of_the_other, 5U);
}

// The owner of the turn does not run for long, as during a snapshot. What a source asks the back end before a run must
// not consume the kick.
TEST_F(SeveralProcessors, AKickIsSeenWhileOneLooksAround) {
  guest_.store_code(code_at, X86("1: jmp 1b"));
  make({.turn = 1ULL << 60U});
  for (auto& backend : backends_) backend->stop_after(~0ULL);
  std::atomic<bool> owner_is_out{}, is_out{};
  std::thread owner{[&] {
    const auto exit = backends_[0]->run();
    EXPECT_TRUE(exit && std::holds_alternative<Interrupted>(*exit));
    board_->turns.let_go(0);
    owner_is_out = true;
  }};
  std::thread other{[&] {
    EXPECT_EQ(backends_[1]->look_around(1000), 0U);
    const auto exit = backends_[1]->run();
    EXPECT_TRUE(exit && std::holds_alternative<Interrupted>(*exit));
    board_->turns.let_go(1);
    is_out = true;
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  board_->turns.kicked(1);
  for (int tries = 0; tries < 1000 && !is_out; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds{5});
  EXPECT_TRUE(is_out);
  while (!is_out) board_->turns.kicked(1);
  while (!owner_is_out) board_->turns.kicked(0);  // where it began only after the kick above
  owner.join();
  other.join();
}

TEST_F(SeveralProcessors, AreNotRestoredAsNoneCanBe) {
  make({.turn = 50});
  const MachineClock::Image clock = board_->clock.image();
  for (const MachineClock::Image& bad :
       {MachineClock::Image{.sharers = 0}, MachineClock::Image{.sharers = 3},
        MachineClock::Image{.part = 1, .sharers = 1}, MachineClock::Image{.now = ~0ULL}})
    EXPECT_FALSE(board_->clock.restore(bad, 2));
  EXPECT_EQ(board_->clock.now(), clock.now);
  EXPECT_FALSE(board_->turns.restore({.owner = 2}));
  EXPECT_TRUE(board_->turns.restore({.owner = ~0U})) << "before the first turn";
}

// Under a lock, which is at data_at, each reads the TSC and checks that it is later than the last value that either has
// read, which is 8 bytes behind; then come the errors.
TEST_F(SeveralProcessors, TheTscNeverGoesBackFromOneToTheOther) {
  const std::vector<std::uint8_t> code =
      X86("mov $2000, %ecx; "
          "1: mov $1, %eax; "
          "xchg %eax, 0x900000; "
          "test %eax, %eax; jne 1b; "
          "rdtsc; shl $32, %rdx; or %rdx, %rax; "
          "cmp 0x900008, %rax; "
          "ja 2f; "
          "incl 0x900010; "
          "2: mov %rax, 0x900008; "
          "movl $0, 0x900000; "
          "dec %ecx; jne 1b; hlt");
  guest_.store_code(code_at, code);
  guest_.store_code(second_code, code);
  for (const std::uint64_t turn : {7U, 100U, 5000U}) {
    guest_.store_word(last_tsc, 0);
    make({.turn = turn});
    ASSERT_TRUE(run_all());
    EXPECT_GT(guest_.load_word(last_tsc), 2000U * 14);
    EXPECT_EQ(guest_.load_word(errors), 0U) << "turns of " << turn;
  }
}

// One calls a function for as long as it returns 1; the other writes to the function's page all the time, and at the
// end to its code.
TEST_F(SeveralProcessors, NewCodeIsSeenByTheOther) {
  constexpr std::uint64_t function = data_at + 0x100;
  guest_.store_code(function, X86("mov $1, %eax; ret"));
  guest_.store_code(code_at, X86("mov $0x900100, %ebx; 1: call *%rbx; cmp $1, %eax; je 1b; hlt"));
  guest_.store_code(
      second_code,
      X86("mov $5000, %ecx; 1: mov %ecx, 0x900000; dec %ecx; jne 1b; movb $2, 0x900101; hlt"));  // function + 1
  for (const std::uint64_t turn : {10U, 1000U, 100'000U}) {
    guest_.store_code(function, {0xB8, 1});
    make({.turn = turn});
    EXPECT_TRUE(run_all()) << "turns of " << turn;
    EXPECT_EQ(backends_[0]->regs()->rax, 2U);
  }
}

// SDM 3A 8.4.4.1. The other processor waits for the start-up IPI, or runs and is interrupted by INIT.
TEST_F(SeveralProcessors, OneStartsTheOther) {
  constexpr std::uint64_t page = 0x9'A000;
  const std::vector<std::uint8_t> real_mode = X86_16("mov %cs, %ax; mov %ax, %cs:0x100; hlt");
  ASSERT_TRUE(guest_.ram.write(vpmu::GuestPhysical{page}, std::as_bytes(std::span{real_mode})));
  guest_.map_to(page, page);
  guest_.backend.special.apic_base = 0xFEE0'0D00;
  std::vector<std::uint8_t> code = X86("mov $300, %ecx; 1: dec %ecx; jne 1b");  // the other runs, too
  const auto wrmsr = [&](std::uint32_t high, std::uint32_t low) {
    const auto word = [&](std::uint8_t opcode, std::uint32_t value) {
      code.push_back(opcode);
      for (unsigned shift = 0; shift < 32; shift += 8) code.push_back(static_cast<std::uint8_t>(value >> shift));
    };
    word(0xB9, 0x830);
    word(0xB8, low);
    word(0xBA, high);
    append(code, X86("wrmsr"));
  };
  wrmsr(1, 0x4500);
  wrmsr(1, 0x469A);
  append(code, X86("1: mov 0x9A100, %ax; test %ax, %ax; je 1b; hlt"));  // page + 100H
  guest_.store_code(code_at, code);
  guest_.store_code(second_code, X86("1: jmp 1b"));
  for (const bool waits : {true, false}) {
    guest_.store_word(page + 0x100, 0);
    make({.turn = 100}, {.waits_for_start = waits});
    EXPECT_FALSE(*backends_[1]->halted());
    EXPECT_TRUE(run_all());
    EXPECT_EQ(backends_[0]->regs()->rax & 0xFFFF, 0x9A00U) << "the selector of that page";
    EXPECT_TRUE(*backends_[1]->halted());
    EXPECT_EQ(backends_[1]->regs()->rip, 7U);
  }
}

TEST_F(SeveralProcessors, OneThatWaitsForItsTurnIsKickedOut) {
  guest_.store_code(code_at, X86("1: jmp 1b"));
  guest_.store_code(second_code, X86("hlt"));
  make({.turn = Schedule::max_quantum});
  for (auto& backend : backends_) backend->stop_after(~0ULL);
  ASSERT_TRUE(backends_[1]->nmi());
  board_->turns.kicked(1);
  *backends_[1]->kick_target() = 0;  // this kick has already been handled
  std::atomic<bool> ends{};
  std::thread first{[&] {
    while (!ends) EXPECT_TRUE(std::holds_alternative<Interrupted>(*backends_[0]->run()));
    board_->turns.leave(0);
  }};
  for (unsigned n = 0; n < 3; ++n) {
    std::thread kicker{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      board_->turns.kicked(1);
    }};
    const auto exit = backends_[1]->run();
    ASSERT_TRUE(exit);
    EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
    kicker.join();
    EXPECT_EQ(backends_[1]->regs()->rip, second_code) << "it is not its turn";
  }
  board_->turns.leave(1);
  ends = true;
  board_->turns.kicked(0);
  first.join();
}

}  // namespace
}  // namespace vmm::test
