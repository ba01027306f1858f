// Processors without KVM that take turns: what they see of each other, and that each run is the same.
#include <atomic>
#include <chrono>
#include <thread>

#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

/// Two processors, each with its own code and stack, that share all memory.
class SeveralProcessors : public SystemInstructions {
 protected:
  static constexpr std::uint64_t second_code = code_at + 0x400, second_stack = stack_top - 0x800;
  static constexpr std::uint64_t last_tsc = data_at + 8, errors = data_at + 16;
  static constexpr std::uint64_t most_ticks = 10'000'000;

  void make(const Schedule& schedule, SoftStart second = {}) {
    ports_.clear();
    board_ = std::make_unique<SoftBoard>(nullptr, schedule);
    const SoftStart start{.sregs = guest_.port.special, .regs = guest_.port.registers, .compiling = {.after = 2}};
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
    ports_.push_back(std::make_unique<SoftPort>(memory_, cpuid_, start, board_.get()));
    ports_.back()->stop_after(most_ticks);
  }
  /// Runs all until they halt; false if one has run for too long.
  bool run_all() {
    std::atomic<bool> all_halted{true};
    std::vector<std::thread> threads;
    for (unsigned id = 0; id < ports_.size(); ++id)
      threads.emplace_back([&, id] {
        const auto exit = ports_[id]->run();
        if (exit && !std::holds_alternative<Interrupted>(*exit)) {
          all_halted = std::holds_alternative<Hlt>(*exit);
          if (std::holds_alternative<TimeUp>(*exit)) saved_ = {board_->clock.image(), board_->turns.image()};
          for (unsigned other = 0; other < ports_.size(); ++other)
            if (other != id) board_->turns.kicked(other);
        }
        board_->turns.leave(id);
      });
    for (std::thread& thread : threads) thread.join();
    return all_halted;
  }

  LinearMemory memory_{guest_.ram, [this](vpmu::GuestPhysical page) {
                         for (auto& port : ports_) port->written(page);
                       }};
  std::unique_ptr<SoftBoard> board_;
  std::pair<MachineClock::Image, Turns::Image> saved_;  ///< Set when the time of one is up.
  std::vector<std::unique_ptr<SoftPort>> ports_;
};

/// Increments data_at 3000 times, without LOCK.
const std::vector<std::uint8_t> increments{0xB9, 0xB8, 0x0B, 0,    0,                       // mov $3000, %ecx
                                           0x48, 0x8B, 0x04, 0x25, 0x00, 0x00, 0x90, 0x00,  // mov data_at, %rax
                                           0x48, 0xFF, 0xC0,                                // inc %rax
                                           0x48, 0x89, 0x04, 0x25, 0x00, 0x00, 0x90, 0x00,  // mov %rax, data_at
                                           0xFF, 0xC9, 0x75, 0xE9, 0xF4};                   // dec; jne; hlt

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

// Saves one race at many moments, also within a turn, and continues it on new processors.
TEST_F(SeveralProcessors, GoOnFromWhereTheyWereSaved) {
  guest_.store_code(code_at, increments);
  guest_.store_code(second_code, increments);
  const Schedule schedule{.turn = 50, .seed = 3};
  guest_.store_word(data_at, 0);
  make(schedule);
  ASSERT_TRUE(run_all());
  const std::uint64_t counted = guest_.load_word(data_at), tsc = *ports_[0]->tsc();
  std::uint64_t in_turn_of_the_other = 0;
  for (unsigned moment = 0; moment < 24; ++moment) {
    const unsigned who = moment % 2;
    guest_.store_word(data_at, 0);
    make(schedule);
    ports_[who]->stop_after(1 + 613 * moment);
    ASSERT_FALSE(run_all());
    const std::array images{ports_[0]->save(), ports_[1]->save()};
    // With the same seed the race ends the same, with another seed otherwise.
    const std::uint64_t half_way = guest_.load_word(data_at);
    for (const std::uint64_t seed : {4U, 3U}) {
      guest_.store_word(data_at, half_way);
      make({.turn = 50, .seed = seed});
      ASSERT_TRUE(board_->clock.restore(saved_.first, 2));
      ASSERT_TRUE(board_->turns.restore(saved_.second));
      for (unsigned id = 0; id < 2; ++id) ASSERT_TRUE(ports_[id]->restore(images.at(id)));
      ASSERT_TRUE(run_all());
      const bool same = guest_.load_word(data_at) == counted && *ports_[0]->tsc() == tsc;
      EXPECT_EQ(same, seed == 3) << "moment " << moment;
    }
    in_turn_of_the_other += saved_.second.owner;
  }
  EXPECT_GT(in_turn_of_the_other, 5U);
}

// The owner of the turn does not run for long, as during a snapshot. What a source asks the port before a run must not
// consume the kick.
TEST_F(SeveralProcessors, AKickIsSeenWhileOneLooksAround) {
  guest_.store_code(code_at, {0xEB, 0xFE});  // jmp to itself
  make({.turn = 1ULL << 60U});
  for (auto& port : ports_) port->stop_after(~0ULL);
  std::thread owner{[&] {
    const auto exit = ports_[0]->run();
    EXPECT_TRUE(exit && std::holds_alternative<Interrupted>(*exit));
    board_->turns.let_go(0);
  }};
  std::atomic<bool> is_out{};
  std::thread other{[&] {
    EXPECT_EQ(ports_[1]->look_around(1000), 0U);
    const auto exit = ports_[1]->run();
    EXPECT_TRUE(exit && std::holds_alternative<Interrupted>(*exit));
    is_out = true;
  }};
  std::this_thread::sleep_for(std::chrono::milliseconds{20});
  board_->turns.kicked(1);
  for (int tries = 0; tries < 1000 && !is_out; ++tries) std::this_thread::sleep_for(std::chrono::milliseconds{5});
  EXPECT_TRUE(is_out);
  while (!is_out) board_->turns.kicked(1);
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

// Under a lock, each reads the TSC and checks that it is later than the last value that either has read.
TEST_F(SeveralProcessors, TheTscNeverGoesBackFromOneToTheOther) {
  const std::vector<std::uint8_t> code{
      0xB9, 0xD0, 0x07, 0,    0,                                   // mov $2000, %ecx
      0xB8, 1,    0,    0,    0,                                   // mov $1, %eax
      0x87, 0x04, 0x25, 0x00, 0x00, 0x90, 0x00,                    // xchg %eax, data_at
      0x85, 0xC0, 0x75, 0xF0,                                      // test; jne to the mov
      0x0F, 0x31, 0x48, 0xC1, 0xE2, 0x20, 0x48, 0x09, 0xD0,        // rdtsc; shl $32, %rdx; or %rdx, %rax
      0x48, 0x3B, 0x04, 0x25, 0x08, 0x00, 0x90, 0x00,              // cmp last_tsc, %rax
      0x77, 0x07,                                                  // ja over the next
      0xFF, 0x04, 0x25, 0x10, 0x00, 0x90, 0x00,                    // incl errors
      0x48, 0x89, 0x04, 0x25, 0x08, 0x00, 0x90, 0x00,              // mov %rax, last_tsc
      0xC7, 0x04, 0x25, 0x00, 0x00, 0x90, 0x00, 0,    0,    0, 0,  // movl $0, data_at
      0xFF, 0xC9, 0x75, 0xBF, 0xF4};                               // dec; jne; hlt
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
  guest_.store_code(function, {0xB8, 1, 0, 0, 0, 0xC3});  // mov $1, %eax; ret
  guest_.store_code(code_at, {0xBB, 0x00, 0x01, 0x90, 0x00, 0xFF, 0xD3, 0x83, 0xF8, 0x01, 0x74, 0xF9, 0xF4});
  guest_.store_code(second_code, {0xB9, 0x88, 0x13, 0,    0,                               // mov $5000, %ecx
                                  0x89, 0x0C, 0x25, 0x00, 0x00, 0x90, 0x00,                // mov %ecx, data_at
                                  0xFF, 0xC9, 0x75, 0xF5,                                  // dec; jne
                                  0xC6, 0x04, 0x25, 0x01, 0x01, 0x90, 0x00, 0x02, 0xF4});  // movb $2, function + 1
  for (const std::uint64_t turn : {10U, 1000U, 100'000U}) {
    guest_.store_code(function, {0xB8, 1});
    make({.turn = turn});
    EXPECT_TRUE(run_all()) << "turns of " << turn;
    EXPECT_EQ(ports_[0]->regs()->rax, 2U);
  }
}

// SDM 3A 8.4.4.1. The other processor waits for the start-up IPI, or runs and is interrupted by INIT.
TEST_F(SeveralProcessors, OneStartsTheOther) {
  constexpr std::uint64_t page = 0x9'A000;
  const std::vector<std::uint8_t> real_mode{0x8C, 0xC8, 0x2E, 0xA3,
                                            0x00, 0x01, 0xF4};  // mov %cs, %ax; mov %ax, %cs:100H
  ASSERT_TRUE(guest_.ram.write(vpmu::GuestPhysical{page}, std::as_bytes(std::span{real_mode})));
  guest_.map_to(page, page);
  guest_.port.special.apic_base = 0xFEE0'0D00;
  std::vector<std::uint8_t> code{0xB9, 0x2C, 1, 0, 0, 0xFF, 0xC9, 0x75, 0xFC};  // 300 rounds: the other runs, too
  const auto wrmsr = [&](std::uint32_t high, std::uint32_t low) {
    const auto word = [&](std::uint8_t opcode, std::uint32_t value) {
      code.push_back(opcode);
      for (unsigned shift = 0; shift < 32; shift += 8) code.push_back(static_cast<std::uint8_t>(value >> shift));
    };
    word(0xB9, 0x830);
    word(0xB8, low);
    word(0xBA, high);
    code.insert(code.end(), {0x0F, 0x30});
  };
  wrmsr(1, 0x4500);
  wrmsr(1, 0x469A);
  code.insert(code.end(), {0x66, 0x8B, 0x04, 0x25, 0x00, 0xA1, 0x09, 0x00,  // mov page + 100H, %ax
                           0x66, 0x85, 0xC0, 0x74, 0xF3, 0xF4});            // test; je; hlt
  guest_.store_code(code_at, code);
  guest_.store_code(second_code, {0xEB, 0xFE});  // jmp to itself
  for (const bool waits : {true, false}) {
    guest_.store_word(page + 0x100, 0);
    make({.turn = 100}, {.waits_for_start = waits});
    EXPECT_FALSE(*ports_[1]->halted());
    EXPECT_TRUE(run_all());
    EXPECT_EQ(ports_[0]->regs()->rax & 0xFFFF, 0x9A00U) << "the selector of that page";
    EXPECT_TRUE(*ports_[1]->halted());
    EXPECT_EQ(ports_[1]->regs()->rip, 7U);
  }
}

TEST_F(SeveralProcessors, OneThatWaitsForItsTurnIsKickedOut) {
  guest_.store_code(code_at, {0xEB, 0xFE});  // jmp to itself
  guest_.store_code(second_code, {0xF4});
  make({.turn = Schedule::longest_turn});
  for (auto& port : ports_) port->stop_after(~0ULL);
  ASSERT_TRUE(ports_[1]->nmi());
  board_->turns.kicked(1);
  *ports_[1]->kick_target() = 0;  // this kick has already been handled
  std::atomic<bool> ends{};
  std::thread first{[&] {
    while (!ends) EXPECT_TRUE(std::holds_alternative<Interrupted>(*ports_[0]->run()));
    board_->turns.leave(0);
  }};
  for (unsigned n = 0; n < 3; ++n) {
    std::thread kicker{[&] {
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
      board_->turns.kicked(1);
    }};
    const auto exit = ports_[1]->run();
    ASSERT_TRUE(exit);
    EXPECT_TRUE(std::holds_alternative<Interrupted>(*exit));
    kicker.join();
    EXPECT_EQ(ports_[1]->regs()->rip, second_code) << "it is not its turn";
  }
  board_->turns.leave(1);
  ends = true;
  board_->turns.kicked(0);
  first.join();
}

}  // namespace
}  // namespace vmm::test
