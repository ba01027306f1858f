#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"

// A kick makes the engine return before its budget ends.

namespace vpmu::exec::test {
namespace {

/// Sets the flag at the guest's 1000th RDTSC.
class Kicking final : public NoPlatform {
 public:
  Answer rdtsc(std::uint64_t& value) override {
    if (++asked == 1000) kick = 1;
    value = 0;
    return Answer::done;
  }
  volatile std::uint8_t kick{};
  unsigned asked{};
};

class Watcher final : public Observer {
 public:
  void fetched(const SeenCode&) override {}
  void accessed(const SeenAccess&, std::uint64_t) override { ++accesses; }
  void retired(bool, bool) override {}
  void branched(const SeenBranch&) override {}
  void abandoned() override {}
  void flushed_line(const SeenFlush&) override {}
  void flushed(const TlbFlush&) override {}
  std::uint64_t accesses{};
};

/// Code on the second page, data on the first, where RBX points. The parameters: after how many times a block is
/// compiled, and whether somebody observes.
class KickedEngine : public testing::TestWithParam<std::tuple<std::uint32_t, bool>> {
 protected:
  [[nodiscard]] static Compiling compiling() { return {.after = std::get<0>(GetParam())}; }
  void observe(Engine& engine) {
    if (std::get<1>(GetParam())) engine.observe(&watcher_);
  }
  void TearDown() override { EXPECT_EQ(watcher_.accesses != 0, std::get<1>(GetParam())); }
  CpuState begin(const std::vector<unsigned>& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
    CpuState state;
    state.rip = ram_.address() + page_size;
    state.rflags = 2;
    state.gpr[rbx] = ram_.address();
    return state;
  }
  FlatRam ram_{2 * page_size};
  Watcher watcher_;
};
INSTANTIATE_TEST_SUITE_P(Interpreted, KickedEngine, testing::Combine(testing::Values(0), testing::Bool()));
INSTANTIATE_TEST_SUITE_P(Compiled, KickedEngine, testing::Combine(testing::Values(1), testing::Bool()));

// These instructions take so long that a budget of instructions does not bound the time.
TEST_P(KickedEngine, ComesBackSoonWhileSomebodyWaits) {
  const std::map<std::string, std::vector<unsigned>> slow{
      {"strings", X86("1: mov $4096, %ecx; mov %rbx, %rdi; rep stosb; jmp 1b")},
      {"its own code", X86("1: andb $0xFF, 1b(%rip); jmp 1b")}};
  for (const auto& [name, code] : slow) {
    SCOPED_TRACE(name);
    Kicking platform;
    TestCode host_code;
    Engine engine{ram_, platform, &host_code, compiling()};
    observe(engine);
    engine.watch(KickFlag{platform.kick});
    engine.load(begin(code));
    EXPECT_EQ(engine.run(10'000), Stop::budget);
    EXPECT_EQ(engine.passed().instructions, 10'000U);
    platform.kick = 1;
    for (unsigned n = 1; n <= 5; ++n) {
      const std::uint64_t before = engine.passed().instructions;
      EXPECT_EQ(engine.run(1'000'000), Stop::budget);
      EXPECT_GT(engine.passed().instructions, before) << "it gets on";
      EXPECT_LE(engine.passed().instructions, before + 64);
    }
    platform.kick = 0;
    const std::uint64_t before = engine.passed().instructions;
    EXPECT_EQ(engine.run(10'000), Stop::budget);
    EXPECT_EQ(engine.passed().instructions, before + 10'000) << "what was put aside is there again";
  }
}

// A kick during a run: compiled code itself does not check the flag, but slow instructions leave it, and they do.
TEST_P(KickedEngine, ComesBackSoonWhenSomebodyComes) {
  Kicking platform;
  TestCode host_code;
  Engine engine{ram_, platform, &host_code, compiling()};
  observe(engine);
  engine.watch(KickFlag{platform.kick});
  engine.load(begin(X86("1: rdtsc; mov $2, %ecx; mov %rbx, %rdi; rep stosb; jmp 1b")));
  EXPECT_EQ(engine.run(1'000'000), Stop::budget);
  EXPECT_EQ(platform.asked, 1000U) << "and not once more";
}

}  // namespace
}  // namespace vpmu::exec::test
