#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <map>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "exec/tests/oracle/random_vector.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::size_t many_scratch_pages = 8;

/// A page of code, one to save a register in, scratch memory, and then no memory.
class VectorOracle : public testing::Test {
 protected:
  VectorOracle() { ram_.end_after((many_scratch_pages + 2) * page_size); }

  [[nodiscard]] CpuState state_of(const VectorCase& c) const {
    CpuState s;
    s.gpr = c.before.gpr;
    s.rflags = c.before.flags;
    s.rip = ram_.address();
    s.paging.cr4 = 1U << 9 | 1U << 10 | 1U << 18;  // OSFXSR, OSXMMEXCPT, OSXSAVE
    return s;
  }
  Stop run_engine(const VectorCase& c, Registers& after) {
    std::memcpy(ram_.bytes().data(), c.code.data(), c.code.size());
    const CpuState s = state_of(c);
    platform_.state = c.vectors;
    engine_.load(s);
    Stop stop = engine_.run(1);
    if (stop == Stop::unsupported) stop = engine_.run(1);  // the room for routines was full, and has been cleared
    const CpuState end = engine_.state();
    after = {end.gpr, end.rflags};
    EXPECT_EQ(end.rip, s.rip + (stop == Stop::budget ? c.code.size() : 0)) << c.text;
    return stop;
  }
  /// The same as compiled code. Instructions before it in the block do the checks that SSE needs.
  Stop run_compiled(const VectorCase& c, Registers& after);
  void expect_same_error(const VectorCase& c, unsigned raised);
  void compare(RandomVector& random, const VectorCase& c, bool compiled = false);
  /// Writes an XSAVE header that XRSTOR mostly accepts, of all formats and components.
  void put_header(RandomVector& random, const VectorCase& c) {
    std::array<std::uint32_t, 4> r{};
    const auto v = random.value();
    std::memcpy(r.data(), v.data(), sizeof r);
    std::array<std::uint64_t, 8> header{};
    const bool compacted = (r[0] & 8) != 0;
    header[0] = r[0] & 7;
    if (compacted) header[1] = 1ULL << 63 | (r[1] & 7) | header[0];
    // Sometimes one that it may refuse, but not for a component that the host has and the guest has not.
    const std::uint64_t changed = 1ULL << (r[3] & 63);
    constexpr std::uint64_t of_others = 0xFFFF8;
    if (r[2] % 8 == 0 && (changed & of_others) == 0) header[r[2] >> 8U & 7] ^= changed;
    const std::uint32_t mxcsr = 0x1F80 | (r[2] >> 16U & 0xE03F);
    const std::size_t at = c.at - scratch_at_;
    const auto put = [&](std::size_t offset, const auto& what) {
      if (at < scratch_.size() && at + offset + sizeof what <= scratch_.size())
        std::memcpy(scratch_.data() + at + offset, &what, sizeof what);
    };
    put(0, std::uint16_t{0x37F});
    put(2, static_cast<std::uint16_t>(r[3] & 0x7F7F));
    put(VectorState::mxcsr_at, mxcsr);
    put(512, header);
  }
  void fill(RandomVector& random, const VectorCase& c) {
    for (std::uint64_t at = c.at; at < c.at + c.bytes; at += 16) {
      const auto v = random.value();
      const std::size_t offset = at - scratch_at_;
      if (offset >= scratch_.size()) continue;
      std::copy_n(v.begin(), std::min(v.size(), scratch_.size() - offset),
                  scratch_.begin() + static_cast<std::ptrdiff_t>(offset));
    }
    if (c.restores) put_header(random, c);
  }

  FlatRam ram_{(many_scratch_pages + 3) * page_size};
  std::span<std::byte> scratch_{ram_.bytes().subspan(2 * page_size, many_scratch_pages* page_size)};
  std::uint64_t saved_{ram_.address() + page_size};
  std::uint64_t scratch_at_{ram_.address() + 2 * page_size};
  VectorPlatform platform_;
  TestCode code_;
  Engine engine_{ram_, platform_, &code_};
  HostCpu host_;
  TestCode compiled_code_;
  Engine compiling_{ram_, platform_, &compiled_code_, Compiling{.after = 1}};
  std::map<std::string, std::uint64_t> known_;
  std::map<std::string, std::uint64_t> ends_, trapped_;
  std::vector<std::byte> memory_{std::vector<std::byte>(scratch_.size())};
  std::vector<std::byte> after_{std::vector<std::byte>(scratch_.size())};
};

/// The parts of the state to compare: what FXSAVE stores without pointers and reserved bytes, and the upper halves.
std::vector<std::byte> comparable(const VectorState& v) {
  std::vector<std::byte> out{v.legacy.begin(), v.legacy.begin() + 5};  // FCW, FSW, FTW
  out.insert(out.end(), v.legacy.begin() + VectorState::mxcsr_at, v.legacy.begin() + VectorState::mxcsr_mask_at);
  for (std::ptrdiff_t n = 0; n < 8; ++n)
    out.insert(out.end(), v.legacy.begin() + 32 + 16 * n, v.legacy.begin() + 42 + 16 * n);
  out.insert(out.end(), v.legacy.begin() + VectorState::xmm_at, v.legacy.begin() + 416);
  for (const auto& upper : v.upper) out.insert(out.end(), upper.begin(), upper.end());
  return out;
}

void expect_same(const VectorCase& c, const Registers& engine, const Registers& host, const VectorState& engine_vectors,
                 const VectorState& host_vectors) {
  for (unsigned n = 0; n < 16; ++n)
    ASSERT_EQ(engine.gpr[n], host.gpr[n]) << c.text << ", register " << n << std::hex << ", before " << c.before.gpr[n];
  ASSERT_EQ(engine.flags & x86::rflags::status, host.flags & x86::rflags::status)
      << c.text << ", flags before " << c.before.flags;
  ASSERT_EQ(engine_vectors.mxcsr(), host_vectors.mxcsr()) << c.text << ", MXCSR before " << c.vectors.mxcsr();
  ASSERT_EQ(engine_vectors.fcw(), host_vectors.fcw()) << c.text;
  ASSERT_EQ(engine_vectors.fsw(), host_vectors.fsw()) << c.text << ", FSW before " << c.vectors.fsw();
  const auto a = comparable(engine_vectors);
  const auto b = comparable(host_vectors);
  const auto at = std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin();
  ASSERT_EQ(a, b) << c.text << ", differs at " << at;
}

// SDM 1 8.7, 11.5.3: nothing has changed but MXCSR's flags.
void VectorOracle::expect_same_error(const VectorCase& c, unsigned raised) {
  const HostFault& fault = host_.fault();
  ASSERT_EQ(fault.vector, raised != 0 ? x86::vector::XM : x86::vector::MF) << c.text;
  // Beside a trapped overflow or underflow the CPU sets PE if the result is inexact with any exponent: the engine, if
  // it is so with the exponents that there are. And a dot product ends at the first step that raises one.
  constexpr std::uint32_t overflow_and_underflow = 0x18, inexact = 0x20, all = 0x3F;
  const bool may_be_exact = (raised & overflow_and_underflow & ~(c.vectors.mxcsr() >> 7)) != 0;
  const bool has_steps = c.mnemonic.find("dpp") != std::string::npos;
  const std::uint32_t compared = has_steps && raised != 0 ? ~all : may_be_exact ? ~inexact : ~0U;
  ASSERT_EQ((c.vectors.mxcsr() | raised) & compared, fault.vectors.mxcsr() & compared)
      << c.text << std::hex << ", MXCSR before " << c.vectors.mxcsr() << ", raised " << raised;
  VectorState expected = c.vectors;
  expected.set_mxcsr(fault.vectors.mxcsr());
  // The manual does not say whether a conversion with MMX registers that raises #XM has entered MMX. AMD's CPUs have.
  const bool may_enter_mmx = raised != 0 && c.mnemonic.find("pi") != std::string::npos;
  if (may_enter_mmx && comparable(expected) != comparable(fault.vectors)) expected.enter_mmx();
  ASSERT_EQ(comparable(expected), comparable(fault.vectors)) << c.text;
  ASSERT_TRUE(std::ranges::equal(memory_, scratch_)) << c.text << " wrote memory on the CPU";
  ++ends_[raised != 0 ? "#XM" : "#MF"];
  ++trapped_[c.mnemonic];
}

Stop VectorOracle::run_compiled(const VectorCase& c, Registers& after) {
  std::vector<std::byte> code;
  const auto put = [&](const std::vector<unsigned>& list) {
    for (const unsigned byte : list) code.push_back(static_cast<std::byte>(byte));
  };
  // All memory of an engine under test is below 2 GiB.
  const auto put_address = [&](std::uint64_t to) {
    for (unsigned n = 0; n < 4; ++n) put({static_cast<unsigned>(to >> (8 * n) & 0xFF)});
  };
  const std::uint64_t page = (c.bytes != 0 ? c.at : scratch_at_) / page_size * page_size;
  // Saves XMM0; accesses the operand's page to fill the TLB for reading and writing; runs XORPS and ADDPS, after which
  // MXCSR may be loaded; restores XMM0. For an AVX instruction all in AVX's encoding, since no block mixes both.
  const auto is_vex = [](std::byte byte) { return byte == std::byte{0xC4} || byte == std::byte{0xC5}; };
  const bool vex = std::ranges::any_of(c.code, is_vex);
  vex ? put({0xC5, 0xFC, 0x11, 0x04, 0x25}) : put({0x0F, 0x11, 0x04, 0x25});
  put_address(saved_);
  vex ? put({0xC5, 0xFA, 0x10, 0x04, 0x25}) : put({0xF3, 0x0F, 0x10, 0x04, 0x25});
  put_address(page);
  vex ? put({0xC5, 0xFA, 0x11, 0x04, 0x25}) : put({0xF3, 0x0F, 0x11, 0x04, 0x25});
  put_address(page);
  vex ? put(X86("vxorps %xmm0, %xmm0, %xmm0")) : put(X86("xorps %xmm0, %xmm0"));
  if (c.masked) vex ? put(X86("vaddps %xmm0, %xmm0, %xmm0")) : put(X86("addps %xmm0, %xmm0"));
  vex ? put({0xC5, 0xFC, 0x10, 0x04, 0x25}) : put({0x0F, 0x10, 0x04, 0x25});
  put_address(saved_);
  const std::uint64_t instructions = (c.masked ? 6 : 5) + 2;
  const std::size_t at = code.size();
  code.insert(code.end(), c.code.begin(), c.code.end());
  put(X86("jmp 1f; 1:"));
  std::memcpy(ram_.bytes().data(), code.data(), code.size());
  const CpuState s = state_of(c);
  const auto run = [&](bool anew) {
    std::ranges::copy(memory_, scratch_.begin());
    platform_.state = c.vectors;
    anew ? compiling_.load(s) : compiling_.resume(s);
    return compiling_.run(instructions);
  };
  Stop stop = run(true);
  if (stop == Stop::unsupported) run(true);  // the room for routines was full, and has been cleared
  stop = run(false);
  const CpuState end = compiling_.state();
  after = {end.gpr, end.rflags};
  EXPECT_EQ(end.rip, s.rip + (stop == Stop::budget ? code.size() : at)) << c.text;
  return stop;
}

/// Runs the instruction in the engine and on the CPU, and compares the results.
void VectorOracle::compare(RandomVector& random, const VectorCase& c, bool compiled) {
  fill(random, c);
  std::ranges::copy(scratch_, memory_.begin());
  Registers engine;
  const Stop stop = compiled ? run_compiled(c, engine) : run_engine(c, engine);
  std::ranges::copy(scratch_, after_.begin());
  std::ranges::copy(memory_, scratch_.begin());
  if (stop != Stop::budget) {
    ASSERT_EQ(after_, memory_) << c.text << ": left alone, it must have changed nothing";
    ASSERT_EQ(engine.gpr, c.before.gpr) << c.text;
    ASSERT_EQ(engine.flags, c.before.flags) << c.text;
    ASSERT_EQ(comparable(platform_.state), comparable(c.vectors)) << c.text;
    ASSERT_TRUE(stop == Stop::fault || stop == Stop::float_error) << c.text << " is not known";
  }
  VectorState host_vectors = c.vectors;
  const auto host = host_.run(c.code, c.before, &host_vectors);
  ASSERT_EQ(host.has_value(), stop == Stop::budget) << c.text << " at " << std::hex << c.at;
  if (!host) {
    if (stop == Stop::float_error) expect_same_error(c, compiled ? compiling_.raised() : engine_.raised());
    if (stop == Stop::fault) ++ends_["fault"];
    std::ranges::copy(memory_, scratch_.begin());
    return;
  }
  ++ends_[c.masked ? "same" : "same though it might have trapped"];
  expect_same(c, engine, *host, platform_.state, host_vectors);
  if (HasFatalFailure()) return;
  ASSERT_TRUE(std::ranges::equal(after_, scratch_)) << c.text << " wrote other memory than the CPU";
  ++known_[c.mnemonic];
}

std::uint64_t wanted_cases() {
  const char* const wanted = std::getenv("VPMU_ORACLE_CASES");
  return wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 60'000;
}
std::uint64_t wanted_seed() {
  const char* const seed = std::getenv("VPMU_ORACLE_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

// Every instruction of these sets, with registers, flags and memory of all kinds, does what this CPU does, and faults
// when it does.
TEST_F(VectorOracle, DoesWhatTheCpuDoes) {
  const std::uint64_t cases = wanted_cases();
  RandomVector random{wanted_seed(), scratch_at_, scratch_.size()};
  for (std::uint64_t done = 0; done < cases; ++done) {
    compare(random, random.next());
    if (HasFatalFailure()) return;
  }
  std::uint64_t missing = 0;
  for (const auto& [name, forms] : random.mnemonics())
    if (cases >= 60'000 && !known_.contains(name)) {
      ADD_FAILURE() << name << " never ran";
      ++missing;
    }
  EXPECT_EQ(missing, 0U);
  EXPECT_GE(known_.size(), 230U) << "x87, MMX, SSE and SSE2 alone are more";
  EXPECT_GT(ends_["fault"], cases / 200);
  EXPECT_GT(ends_["#MF"], cases / 200);
  EXPECT_GT(ends_["#XM"], cases / 200);
  EXPECT_GT(ends_["same though it might have trapped"], cases / 200);
  for (const auto& [name, n] : ends_) RecordProperty(name, std::to_string(n));
  if (std::getenv("VPMU_ORACLE_VERBOSE") != nullptr) {
    for (const auto& [name, n] : ends_) std::printf("%s: %lu\n", name.c_str(), n);
    for (const auto& [name, n] : known_) std::printf("known %s %lu\n", name.c_str(), n);
    for (const auto& [name, n] : trapped_) std::printf("trapped %s %lu\n", name.c_str(), n);
  }
}

// The same for compiled code, which runs SSE in AVX's encoding.
TEST_F(VectorOracle, CompiledDoesWhatTheCpuDoes) {
  const std::uint64_t cases = wanted_cases();
  RandomVector random{wanted_seed() + 2, scratch_at_, scratch_.size()};
  for (std::uint64_t done = 0; done < cases; ++done) {
    compare(random, random.next(done % 4 == 0 ? RandomVector::Prefixes::padded : RandomVector::Prefixes::needed), true);
    if (HasFatalFailure()) return;
  }
  EXPECT_GE(known_.size(), 230U);
  EXPECT_GT(ends_["fault"], cases / 200);
  EXPECT_GT(compiling_.compiled_blocks(), cases * 9 / 10);
}

// A guest may put as many prefixes before an instruction as 15 bytes hold.
TEST_F(VectorOracle, DoesWhatTheCpuDoesWithMorePrefixesThanNeeded) {
  const std::uint64_t cases = wanted_cases() / 2;
  RandomVector random{wanted_seed() + 1, scratch_at_, scratch_.size()};
  std::array<std::uint64_t, 16> by_length{};
  for (std::uint64_t done = 0; done < cases; ++done) {
    const VectorCase c = random.next(RandomVector::Prefixes::padded);
    ++by_length[c.code.size()];
    compare(random, c);
    if (HasFatalFailure()) return;
  }
  for (std::size_t length = 5; length < by_length.size(); ++length) EXPECT_GT(by_length[length], cases / 100) << length;
  EXPECT_GE(known_.size(), 230U);
}

}  // namespace
}  // namespace vpmu::exec::test
