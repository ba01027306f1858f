#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/flat_ram.hpp"

namespace vpmu::exec::test {
namespace {

const Assembled program =
    X86("mov $10000, %ecx; 1: imul $1103515245, %eax, %eax; add $12345, %eax; test $0x10000, %eax; je 2f; "
        "inc %ebx; 2: dec %ecx; jne 1b; ud2");
constexpr std::uint64_t rounds = 10'000;

/// Keeps another CPU and its caches busy while it lives.
class Load {
 public:
  ~Load() { stop_ = true; }
  [[nodiscard]] bool has_run() const { return turns_ != 0; }

 private:
  std::atomic<bool> stop_{};
  std::atomic<std::uint64_t> turns_{};
  std::array<std::atomic<unsigned>, 1 << 16> words_{};
  std::jthread thread_{[this] {
    while (!stop_)
      for (auto& word : words_) {
        ++word;
        ++turns_;
      }
  }};
};

// rr requires a counter of conditional branches that is the same in each run, whatever else the host runs and however
// the run is cut.
TEST(ConditionalBranches, AreTheSameInAHundredRunsUnderLoad) {
  const Load load;
  FlatRam ram{page_size};
  for (std::size_t i = 0; i < program.size(); ++i) ram.bytes()[i] = static_cast<std::byte>(program[i]);
  NoPlatform nobody;
  std::uint64_t taken = 0;
  for (unsigned n = 0; n < 100; ++n) {
    Engine engine{ram, nobody};
    CpuState s;
    s.rip = ram.address();
    s.rflags = 2;
    engine.load(s);
    Stop stop = Stop::budget;
    for (unsigned piece = 0; stop == Stop::budget && piece < 100'000; ++piece) stop = engine.run(1000 + 37ULL * n);
    ASSERT_EQ(stop, Stop::unsupported);
    ASSERT_EQ(engine.passed().branches, 2 * rounds) << "run " << n;
    if (n == 0) taken = engine.state().gpr[rbx];
    ASSERT_EQ(engine.state().gpr[rbx], taken);
  }
  EXPECT_GT(taken, rounds / 4) << "branches go both ways";
  EXPECT_LT(taken, 3 * rounds / 4);
  EXPECT_TRUE(load.has_run());
}

}  // namespace
}  // namespace vpmu::exec::test
