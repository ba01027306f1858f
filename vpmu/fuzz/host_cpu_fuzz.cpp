#include <algorithm>
#include <array>

#include "exec/engine.hpp"
#include "exec/tests/oracle/random_instruction.hpp"
#include "fuzz_input.hpp"
#include "vpmu/x86.hpp"

// Random bytes as one instruction of those that this process may execute itself, and a seed for registers, flags and
// memory: what the engine does not leave alone it does as this CPU does.

namespace {

using namespace vpmu;
using exec::test::Case;
using exec::test::FlatRam;
using exec::test::HostCpu;
using exec::test::RandomInstruction;
using fuzz::require;

constexpr std::size_t scratch_bytes = 8 * page_size;

std::uint64_t instructions_compared = 0;

void require_same(const Case& c, bool same, const char* what) {
  if (!same) std::fprintf(stderr, "%s\n", c.text.c_str());
  require(same, what);
}

class Bench {
 public:
  void compare(const Case& c, std::uint64_t seed) {
    std::mt19937_64 random{seed};
    for (std::size_t n = 0; n < scratch_.size(); n += 8) {
      const std::uint64_t word = random();
      std::memcpy(scratch_.data() + n, &word, 8);
    }
    const std::vector<std::byte> before{scratch_.begin(), scratch_.end()};
    std::memcpy(ram_.bytes().data() + scratch_bytes, c.code.data(), c.code.size());
    exec::CpuState s;
    s.gpr = c.before.gpr;
    s.rflags = c.before.flags;
    s.rip = ram_.address() + scratch_bytes;
    engine_.load(s);
    const exec::Stop stop = engine_.run(1);
    const exec::CpuState after = engine_.state();
    if (stop != exec::Stop::budget) {
      const bool rep = stop == exec::Stop::again || (c.code[0] == std::byte{0xF2}) || (c.code[0] == std::byte{0xF3});
      require_same(c, rep || (after.gpr == s.gpr && after.rflags == s.rflags),
                   "what is left alone has changed no register");
      require_same(c, rep || std::equal(before.begin(), before.end(), scratch_.begin()),
                   "what is left alone has changed no memory");
      return;
    }
    const std::vector<std::byte> written{scratch_.begin(), scratch_.end()};
    std::ranges::copy(before, scratch_.begin());
    const auto ran = host_.run(c.code, c.before);
    require_same(c, ran.has_value(), "what the engine runs does not fault on the CPU");
    const exec::test::Registers& host = *ran;
    for (unsigned n = 0; n < 16; ++n) {
      const bool open = (c.undefined_registers >> n & 1) != 0 && after.gpr[n] == c.before.gpr[n];
      require_same(c, open || after.gpr[n] == host.gpr[n], "registers as the CPU has them");
    }
    require_same(c, ((after.rflags ^ host.flags) & x86::rflags::status & ~c.undefined) == 0,
                 "flags as the CPU has them");
    require_same(c, std::equal(written.begin(), written.end(), scratch_.begin()), "memory as the CPU has it");
    require_same(c, after.rip == s.rip + c.code.size() && engine_.passed().instructions == 1, "one instruction");
    ++instructions_compared;
  }
  [[nodiscard]] std::uint64_t address() const { return ram_.address(); }

 private:
  FlatRam ram_{scratch_bytes + page_size};
  std::span<std::byte> scratch_{ram_.bytes().first(scratch_bytes)};
  exec::NoPlatform nobody_;
  exec::test::TestCode code_;
  exec::Engine engine_{ram_, nobody_, &code_};
  HostCpu host_;
};

}  // namespace

extern "C" std::uint64_t fuzz_work() { return instructions_compared; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Bench bench;
  fuzz::Input input{data, size};
  const auto seed = input.take<std::uint64_t>();
  std::vector<std::byte> code(15);
  for (std::byte& b : code) b = std::byte{input.take<std::uint8_t>()};
  RandomInstruction instructions{seed, bench.address(), scratch_bytes};
  if (const auto c = instructions.with(code)) bench.compare(*c, seed);
  return 0;
}
