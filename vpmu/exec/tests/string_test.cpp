// Repeated string instructions that do many elements at once, against a model that does one at a time, as the manual
// says. SDM 2B REP, MOVS, STOS.
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::size_t data_pages = 4;

struct StringCase {
  bool moves{};
  unsigned bytes{};
  std::uint64_t count{}, from{}, to{};
  bool down{};
};

/// Code on the first page, then data, and then no memory.
class Strings : public testing::Test {
 protected:
  /// Does in `memory` what the instruction must do; returns how many elements fit before memory ends.
  std::uint64_t expect(const StringCase& c, std::vector<std::byte>& memory, std::uint64_t value) const {
    const std::uint64_t step = c.down ? std::uint64_t{0} - c.bytes : c.bytes;
    for (std::uint64_t n = 0; n < c.count; ++n) {
      const std::uint64_t to = c.to + n * step, from = c.from + n * step;
      const auto fits = [&](std::uint64_t at) { return at <= memory.size() && memory.size() - at >= c.bytes; };
      if (!fits(to) || (c.moves && !fits(from))) return n;
      std::array<std::byte, 8> element{};
      std::memcpy(element.data(), c.moves ? memory.data() + from : reinterpret_cast<const std::byte*>(&value), c.bytes);
      std::memcpy(memory.data() + to, element.data(), c.bytes);
    }
    return c.count;
  }
  void run(const StringCase& c, std::mt19937_64& random) {
    const std::span<std::byte> data = ram_.bytes().subspan(page_size);
    for (std::byte& b : data) b = static_cast<std::byte>(random());
    std::vector<std::byte> expected{data.begin(), data.end()};
    state_.gpr[rax] = random();
    state_.gpr[rcx] = c.count;
    state_.gpr[rsi] = data_at_ + c.from;
    state_.gpr[rdi] = data_at_ + c.to;
    state_.rflags = 2 | (c.down ? 0x400U : 0U);
    state_.rip = ram_.address();
    const unsigned opcode = (c.moves ? 0xA4U : 0xAAU) | (c.bytes == 1 ? 0U : 1U);
    std::vector<unsigned> code;
    if (c.bytes == 2) code.push_back(0x66);
    code.push_back(0xF3);
    if (c.bytes == 8) code.push_back(0x48);
    code.push_back(opcode);
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[i] = static_cast<std::byte>(code[i]);
    const std::uint64_t done = expect(c, expected, state_.gpr[rax]);
    engine_.load(state_);
    constexpr std::uint64_t at_once = 4096;
    std::uint64_t parts = 0;
    Stop stop = engine_.run(1);
    for (; stop == Stop::again && parts < 10; ++parts) stop = engine_.run(1);
    ASSERT_EQ(stop, done == c.count ? Stop::budget : Stop::fault);
    ASSERT_TRUE(std::ranges::equal(data, expected));
    const CpuState after = engine_.state();
    const std::uint64_t moved = done * (c.down ? std::uint64_t{0} - c.bytes : c.bytes);
    ASSERT_EQ(after.gpr[rcx], c.count - done);
    ASSERT_EQ(parts, done == 0 ? 0 : (done - (done == c.count ? 1 : 0)) / at_once) << "it comes back in between";
    // One access for each element; the first one counts with the instruction, when it retires.
    const auto more = static_cast<std::int64_t>(done) - (stop == Stop::budget ? 1 : 0);
    ASSERT_EQ(engine_.passed().more_loads, c.moves ? more : 0);
    ASSERT_EQ(engine_.passed().more_stores, more);
    ASSERT_EQ(after.gpr[rdi], state_.gpr[rdi] + moved);
    ASSERT_EQ(after.gpr[rsi], state_.gpr[rsi] + (c.moves ? moved : 0));
  }

  FlatRam ram_{(1 + data_pages) * page_size};
  std::uint64_t data_at_{ram_.address() + page_size};
  NoPlatform platform_;
  Engine engine_{ram_, platform_};
  CpuState state_;
};

TEST_F(Strings, ManyElementsAtOnceAreThoseOneByOne) {
  std::mt19937_64 random{1};
  unsigned faults = 0, long_ones = 0, overlaps = 0;
  for (unsigned n = 0; n < 20'000; ++n) {
    StringCase c{.moves = random() % 2 == 0, .bytes = 1U << random() % 4};
    c.count = random() % 4 == 0 ? random() % 12'000 : random() % 200;
    c.to = random() % (data_pages * page_size);
    const std::uint64_t near = random() % 80;
    c.from = random() % 2 == 0 ? random() % (data_pages * page_size)
                               : std::min(c.to + near, std::uint64_t{data_pages * page_size});
    if (random() % 2 == 0 && c.to >= near) c.from = c.to - near;
    c.down = random() % 8 == 0;
    if (c.down) c.count = std::min(c.count, std::min(c.to, c.from) / c.bytes);
    faults += std::max(c.to, c.moves ? c.from : 0) + c.count * c.bytes > data_pages * page_size && !c.down ? 1 : 0;
    long_ones += c.count > 4096 ? 1 : 0;
    overlaps += c.moves && c.from < c.to && c.to - c.from < c.count * c.bytes ? 1 : 0;
    SCOPED_TRACE(testing::Message() << n << ": " << c.moves << ' ' << c.bytes << " bytes, " << c.count << " from "
                                    << c.from << " to " << c.to << " down " << c.down);
    run(c, random);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(faults, 1000U);
  EXPECT_GT(long_ones, 100U);
  EXPECT_GT(overlaps, 1000U);
}

// The engine stops before what may make more accesses than are left, with nothing changed.
TEST_F(Strings, StopBeforeTheAccessesThatAreTooMany) {
  const Assembled code = X86("rep movsb; cmpsb");
  for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[i] = static_cast<std::byte>(code[i]);
  state_.gpr[rcx] = 10;
  state_.gpr[rsi] = data_at_;
  state_.gpr[rdi] = data_at_ + 100;
  state_.rip = ram_.address();
  engine_.load(state_);
  engine_.limit_accesses(9);
  EXPECT_EQ(engine_.run(2), Stop::accesses);
  EXPECT_EQ(engine_.passed().instructions, 0U);
  EXPECT_EQ(engine_.state().gpr[rcx], 10U);
  engine_.limit_accesses(10);
  EXPECT_EQ(engine_.run(2), Stop::budget) << "it has made nine beyond the first, and CMPSB makes one";
  EXPECT_EQ(engine_.passed().more_loads, 10);
  state_.rip = ram_.address() + 2;
  engine_.load(state_);
  engine_.limit_accesses(0);
  EXPECT_EQ(engine_.run(1), Stop::accesses);
  EXPECT_EQ(engine_.state().gpr[rsi], data_at_);
}

}  // namespace
}  // namespace vpmu::exec::test
