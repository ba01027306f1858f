// Compiled code does what the interpreter does: random programs run in both, with transitions between them.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <sstream>
#include <string>

#include "exec/engine.hpp"
#include "exec/host/host_form.hpp"
#include "exec/tests/fixtures/host_cpu.hpp"
#include "exec/tests/fixtures/page_tables.hpp"
#include "exec/tests/fixtures/random_program.hpp"
#include "exec/tests/fixtures/vector_platform.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec::test {
namespace {

constexpr std::uint64_t address_bits = ~0xFFFULL;

/// Guest memory behind page tables. The linear pages from `base` on are two of code, then data pages that are writable,
/// read-only or not mapped, and one of the code pages once more. All are there again from `base` + `again` on, at the
/// same places of the TLB.
class Machine {
 public:
  static constexpr std::uint64_t base = 0x40'0000;
  static constexpr std::uint64_t again = 1U << 21;
  static_assert(again / page_size % tlb_entries == 0);
  static constexpr unsigned linear_pages = 10;
  enum Page : std::uint64_t { pml4, pdpt, directory, table, code, more_code, data, data_2, data_3, data_4, count };

  explicit Machine(std::uint32_t compile_after, std::size_t room = 4U << 20U)
      : host_code{room}, engine{ram, platform, &host_code, Compiling{.after = compile_after}} {
    link(pml4, 0, pdpt, writable);
    link(pdpt, 0, directory, writable);
    link(directory, base >> 21, table, writable);
    link(directory, (base + again) >> 21, table, writable);
    constexpr std::array<Page, linear_pages> pages{code,   more_code, data, data_2, data_3,
                                                   data_4, data,      code, data_2, data_3};
    constexpr std::array<std::uint64_t, linear_pages> rights{writable, writable, writable, writable, 0,
                                                             writable, writable, writable, writable, ~0ULL};
    for (unsigned n = 0; n < linear_pages; ++n)
      if (rights[n] != ~0ULL) link(table, n, pages[n], rights[n]);
  }
  [[nodiscard]] std::uint64_t at(Page page) const { return ram.address() + page * page_size; }
  [[nodiscard]] std::byte* bytes(Page page) const { return ram.bytes().data() + page * page_size; }
  void link(Page from, std::size_t entry, Page to, std::uint64_t rights) const {
    link_page(ram, from, entry, to, user | rights);
  }
  [[nodiscard]] PagingState paging() const {
    PagingState p = four_level_paging(at(pml4));
    p.cr4 |= bit(9) | bit(18);  // OSFXSR, OSXSAVE
    return p;
  }
  /// Whether memory and the entries' accessed and dirty bits are the same.
  [[nodiscard]] bool same_memory(const Machine& other) const {
    if (std::memcmp(bytes(code), other.bytes(code), (count - code) * page_size) != 0) return false;
    for (unsigned n = 0; n < linear_pages; ++n)
      if ((word(n) & ~address_bits) != (other.word(n) & ~address_bits)) return false;
    return true;
  }

  FlatRam ram{count * page_size};
  VectorPlatform platform;
  TestCode host_code;
  Engine engine;

 private:
  [[nodiscard]] std::uint64_t word(unsigned n) const {
    std::uint64_t value{};
    std::memcpy(&value, bytes(table) + n * sizeof value, sizeof value);
    return value;
  }
};

/// Records the events that it observes. Physical addresses are relative to the machine's memory.
class Trace final : public Observer {
 public:
  using Event = std::array<std::uint64_t, 7>;
  enum What : std::uint64_t { code, access, retirement, branch, gave_up, flush_of_line, flush };

  explicit Trace(std::uint64_t base) : base_{base} {}
  void fetched(const SeenCode& c) override { add({code, c.linear, c.physical - base_, c.page_bytes}); }
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    const std::uint64_t flags = (a.store ? 1U : 0U) | (a.second_half ? 2U : 0U) | (a.global ? 4U : 0U);
    add({access, a.linear, a.physical - base_, a.page_bytes, a.bytes, flags, now});
  }
  void retired(bool load, bool store) override { add({retirement, load, store}); }
  void branched(const SeenBranch& b) override {
    add({branch, b.at, b.fall_through, b.to, static_cast<std::uint64_t>(b.kind), b.taken, b.now});
  }
  void abandoned() override { add({gave_up}); }
  void flushed_line(const SeenFlush& f) override { add({flush_of_line, f.linear, f.physical - base_, f.now}); }
  void flushed(const TlbFlush& lost) override {
    add({flush, static_cast<std::uint64_t>(lost.of), lost.pcid, lost.linear});
  }

  std::vector<Event> events;
  std::array<std::uint64_t, flush + 1> seen{};

 private:
  void add(const Event& event) {
    events.push_back(event);
    ++seen[event[0]];
  }
  std::uint64_t base_;
};

class RandomPrograms {
 public:
  explicit RandomPrograms(std::uint64_t seed) : random_{seed} {}
  RandomPrograms(std::uint64_t seed, std::size_t room, bool have_vectors = true)
      : random_{seed}, have_vectors_{have_vectors}, compiled_{1, room} {}
  /// From now on both engines are observed.
  void observe() {
    interpreted_.engine.observe(&interpreted_trace_);
    compiled_.engine.observe(&compiled_trace_);
    is_observed_ = true;
  }
  /// From now on both engines count instructions by their class.
  void count_classes() {
    interpreted_.engine.count_classes(true);
    compiled_.engine.count_classes(true);
  }
  [[nodiscard]] const ClassCounts& classes() const { return compiled_.engine.classes(); }
  /// Lets this many more changes of compiled code succeed; later ones fail.
  void allow_changes(std::uint64_t count) { compiled_.host_code.changes_left = count; }
  [[nodiscard]] const Trace& trace() const { return compiled_trace_; }
  /// The most instructions of one run.
  [[nodiscard]] std::uint64_t max() const { return max_; }
  /// Runs a random program in both engines from several states. False if they differ, after a failure was reported.
  bool run() {
    RandomProgram program{random_(), Machine::base, have_vectors_};
    program.write();
    text_ = program.code();
    ++programs_;
    for (Machine* m : {&interpreted_, &compiled_}) {
      std::memset(m->bytes(Machine::code), 0x90, 2 * page_size);
      std::memcpy(m->bytes(Machine::code) + from_page_start_, program.code().data(), program.code().size());
    }
    fill_data();
    for (unsigned n = 0; n < 12; ++n) {
      begin(program, n == 0 || below(2) == 0);
      for (unsigned turn = 0; turn < 6; ++turn) {
        if (!advance()) return false;
        if (last_ == Stop::float_error) mask_exceptions();
        if (last_ != Stop::budget && last_ != Stop::float_error) break;
        if (below(3) == 0) continue;
        for (Machine* m : {&interpreted_, &compiled_}) m->engine.resume(m->engine.state());
      }
    }
    return true;
  }
  [[nodiscard]] std::uint64_t instructions() const { return instructions_; }
  [[nodiscard]] std::uint64_t compiled_blocks() const { return compiled_.engine.compiled_blocks(); }
  [[nodiscard]] unsigned made_room() const { return compiled_.host_code.cleared; }
  [[nodiscard]] std::uint64_t stopped(Stop why) const { return stops_[static_cast<unsigned>(why)]; }

 private:
  static constexpr std::size_t from_page_start_ = 3000;  // so that a program crosses two pages

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  void fill_data() {
    for (std::size_t i = 0; i < 4 * page_size; ++i)
      interpreted_.bytes(Machine::data)[i] = static_cast<std::byte>(below(4) == 0 ? 0 : random_());
    std::memcpy(compiled_.bytes(Machine::data), interpreted_.bytes(Machine::data), 4 * page_size);
  }
  /// What a handler does that goes on.
  void mask_exceptions() {
    for (Machine* m : {&interpreted_, &compiled_}) {
      m->platform.state.set_mxcsr(m->platform.state.mxcsr() | m->engine.raised() | 0x1F80);
      m->engine.resume(m->engine.state());
    }
  }
  /// Numbers of all kinds and any rounding mode; sometimes with unmasked exceptions.
  VectorState random_vectors() {
    VectorState v;
    const std::uint64_t masks = below(6) == 0 ? random_() & 0x1F80 : 0x1F80;
    v.set_mxcsr(static_cast<std::uint32_t>(masks | (random_() & 0xE07F)));
    for (std::size_t n = 0; n < 32; ++n) {
      const double number = static_cast<double>(below(1000)) / 8 - 60;
      const std::uint64_t word = below(2) == 0 ? std::bit_cast<std::uint64_t>(number) : random_() >> below(64);
      std::memcpy(v.legacy.data() + VectorState::xmm_at + 8 * n, &word, sizeof word);
      if (below(4) == 0) v.upper[n / 2].fill(static_cast<std::byte>(random_()));
    }
    v.xcr0 = host_has(CpuFeature::avx) ? 7 : 3;
    return v;
  }
  /// Often close to a page boundary, seldom in the code.
  std::uint64_t pointer() {
    const std::uint64_t page = below(30) == 0 ? below(12) : 2 + below(7);
    return Machine::base + below(2) * Machine::again + page * page_size +
           (below(4) == 0 ? page_size - below(24) : below(page_size));
  }
  void begin(const RandomProgram& program, bool anew) {
    CpuState s;
    for (auto& r : s.gpr) r = below(3) == 0 ? below(256) : random_() >> below(64);
    for (const unsigned p : RandomProgram::pointers) s.gpr[p] = pointer();
    s.gpr[rsp] = Machine::base + below(2) * Machine::again + (2 + below(2)) * page_size + page_size / 2 + below(64) * 8;
    s.fs_base = below(page_size);
    s.gs_base = 0 - below(64);
    s.rflags = (random_() & x86::rflags::status) | 2;
    s.rip = Machine::base + from_page_start_ + program.blocks()[below(program.blocks().size())];
    s.cpl = static_cast<std::uint8_t>(below(2) * 3);
    const VectorState vectors = random_vectors();
    for (Machine* m : {&interpreted_, &compiled_}) {
      s.paging = m->paging();
      m->platform.state = vectors;
      anew ? m->engine.load(s) : m->engine.resume(s);
    }
    if (anew) passed_ = 0;
  }
  /// Runs a random number of instructions: in one run in the interpreter, in several as compiled code. When observed,
  /// both use one run, because fetches of a block that is cut are reported when its rest runs.
  bool advance() {
    const std::uint64_t budget = 1 + below(below(4) == 0 ? 12 : is_observed_ ? 5000 : 300);
    before_ = interpreted_.engine.state();
    vectors_before_ = interpreted_.platform.state;
    memory_before_.assign(interpreted_.bytes(Machine::code), interpreted_.bytes(Machine::count));
    last_ = interpreted_.engine.run(budget);
    const std::uint64_t passed = interpreted_.engine.passed().instructions - passed_;
    Stop other = Stop::budget;
    std::uint64_t done = 0;
    while (other == Stop::budget && done < budget) {
      const std::uint64_t piece = is_observed_ || below(2) == 0 ? budget : 1 + below(40);
      other = compiled_.engine.run(std::min(budget - done, piece));
      done = compiled_.engine.passed().instructions - passed_;
    }
    instructions_ += passed;
    passed_ += passed;
    max_ = std::max(max_, passed);
    ++stops_[static_cast<unsigned>(last_)];
    if (is_same(other)) return true;
    show_difference(budget);
    return false;
  }
  /// Finds the first difference by running both again, an instruction further each time.
  void show_difference(std::uint64_t budget) {
    for (std::uint64_t n = 1; n <= budget; ++n) {
      std::uint64_t rip = 0;
      for (Machine* m : {&interpreted_, &compiled_}) {
        std::ranges::copy(memory_before_, m->bytes(Machine::code));
        before_.paging = m->paging();
        m->platform.state = vectors_before_;
        m->engine.load(before_);
        if (n > 1) m->engine.run(n - 1);
        rip = m->engine.state().rip;
        std::ranges::copy(memory_before_, m->bytes(Machine::code));
        m->platform.state = vectors_before_;
        m->engine.load(before_);
        m->engine.run(n);
      }
      const CpuState a = interpreted_.engine.state();
      const CpuState b = compiled_.engine.state();
      if (a.gpr == b.gpr && a.rip == b.rip && a.rflags == b.rflags && interpreted_.same_memory(compiled_) &&
          interpreted_.platform.state.legacy == compiled_.platform.state.legacy &&
          interpreted_.platform.state.upper == compiled_.platform.state.upper)
        continue;
      const auto* const code = reinterpret_cast<const unsigned char*>(memory_before_.data()) + rip % (2 * page_size);
      std::string bytes;
      for (unsigned k = 0; k < 15; ++k) bytes += std::to_string(code[k]) + ' ';
      ADD_FAILURE() << "they differ after instruction " << n << ", at " << std::hex << rip << ": " << bytes << " flags "
                    << a.rflags << " and " << b.rflags;
      return;
    }
  }
  bool is_same(Stop other) {
    const CpuState a = interpreted_.engine.state();
    const CpuState b = compiled_.engine.state();
    const Passed p = interpreted_.engine.passed();
    const Passed q = compiled_.engine.passed();
    EXPECT_EQ(last_, other);
    EXPECT_EQ(interpreted_.engine.raised(), compiled_.engine.raised());
    EXPECT_EQ(a.rip, b.rip);
    EXPECT_EQ(a.rflags, b.rflags);
    for (unsigned n = 0; n < a.gpr.size(); ++n) EXPECT_EQ(a.gpr[n], b.gpr[n]) << "register " << n;
    EXPECT_EQ(p.instructions, q.instructions);
    EXPECT_EQ(p.branches, q.branches);
    EXPECT_EQ(p.loads, q.loads);
    EXPECT_EQ(p.stores, q.stores);
    EXPECT_EQ(interpreted_.engine.classes(), compiled_.engine.classes());
    EXPECT_TRUE(interpreted_.same_memory(compiled_));
    EXPECT_EQ(interpreted_.platform.state.legacy, compiled_.platform.state.legacy);
    EXPECT_EQ(interpreted_.platform.state.upper, compiled_.platform.state.upper);
    EXPECT_EQ(first_difference(), "");
    for (const Machine* m : {&interpreted_, &compiled_})
      EXPECT_EQ(m->engine.observed(), is_observed_ ? instructions_ : 0);
    interpreted_trace_.events.clear();
    compiled_trace_.events.clear();
    if (!testing::Test::HasFailure()) return true;
    ADD_FAILURE() << "program " << programs_ << std::hex << ", RIP " << a.rip << ", "
                  << (a.rip - Machine::base - from_page_start_) << " in " << text();
    return false;
  }
  /// The first difference between the observed events, as text; empty if there is none.
  [[nodiscard]] std::string first_difference() const {
    const auto& a = interpreted_trace_.events;
    const auto& b = compiled_trace_.events;
    const std::size_t n = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
    if (n == a.size() && n == b.size()) return {};
    const auto text = [n](const std::vector<Trace::Event>& events) {
      std::ostringstream s;
      s << std::hex;
      for (std::size_t i = n > 2 ? n - 2 : 0; i < std::min(n + 2, events.size()); ++i) {
        for (const std::uint64_t word : events[i]) s << word << ' ';
        s << "; ";
      }
      return s.str();
    };
    return "event " + std::to_string(n) + ": interpreted " + text(a) + "compiled " + text(b);
  }
  [[nodiscard]] std::string text() const {
    std::string s;
    for (const std::uint8_t b : text_) s += "0123456789ABCDEF"[b >> 4], s += "0123456789ABCDEF"[b & 15];
    return s;
  }

  std::mt19937_64 random_;
  bool have_vectors_{true};
  VectorState vectors_before_;
  Machine interpreted_{0};
  Machine compiled_{1};
  Trace interpreted_trace_{interpreted_.ram.address()}, compiled_trace_{compiled_.ram.address()};
  bool is_observed_{};
  Stop last_{};
  CpuState before_;
  std::vector<std::byte> memory_before_;
  std::vector<std::uint8_t> text_;
  std::uint64_t passed_{}, instructions_{}, programs_{}, max_{};
  std::array<std::uint64_t, 9> stops_{};
};

// Over a million instructions: registers, flags, memory, counts and the stop's reason are the same at each budget's
// end.
TEST(CompiledCode, DoesWhatTheInterpreterDoes) {
  const char* const wanted = std::getenv("VPMU_COMPILED_PROGRAMS");
  const char* const seed = std::getenv("VPMU_ORACLE_SEED");
  const std::uint64_t programs = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 2500;
  RandomPrograms random{seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1};
  for (std::uint64_t n = 0; n < programs; ++n)
    if (!random.run()) return;
  EXPECT_GE(random.instructions(), 400 * programs);
  EXPECT_GE(random.compiled_blocks(), 4 * programs);
  for (const Stop why : {Stop::budget, Stop::fault, Stop::float_error})
    EXPECT_GT(random.stopped(why), 0U) << static_cast<unsigned>(why);
  std::printf("%lu instructions, %lu blocks compiled, %lu faults\n", random.instructions(), random.compiled_blocks(),
              random.stopped(Stop::fault));
}

// Compiled code reports the same events to an observer, in the same order.
TEST(CompiledCode, IsSeenAsTheInterpreterIs) {
  RandomPrograms random{4};
  random.observe();
  for (unsigned n = 0; n < 1000; ++n)
    if (!random.run()) return;
  EXPECT_GE(random.compiled_blocks(), 4000U);
  EXPECT_GT(random.max(), 2U * Tap::max_logged) << "the log is read within a run";
  for (const Trace::What what : {Trace::code, Trace::access, Trace::retirement, Trace::branch})
    EXPECT_GT(random.trace().seen[what], 0U) << what;
}

// Instructions by their class are the same, also where the run is cut, where the observer is told, and where an
// instruction faults in the middle of its block.
TEST(CompiledCode, CountsClassesAsTheInterpreterDoes) {
  for (const bool observed : {false, true}) {
    RandomPrograms random{observed ? 7U : 6U};
    random.count_classes();
    if (observed) random.observe();
    for (unsigned n = 0; n < 600; ++n)
      if (!random.run()) return;
    EXPECT_GE(random.compiled_blocks(), 2400U);
    EXPECT_GT(random.stopped(Stop::fault), 0U);
    for (const auto of : {InstructionClass::sse_packed_single_arithmetic, InstructionClass::sse_integer_arithmetic,
                          InstructionClass::integer_product}) {
      const std::uint64_t n = random.classes()[static_cast<unsigned>(of)];
      EXPECT_GT(n, 100U) << static_cast<unsigned>(of);
      EXPECT_LT(n, random.instructions()) << static_cast<unsigned>(of);
    }
  }
}

// Compiled code with room for only a few blocks at a time.
TEST(CompiledCode, MakesRoomForMore) {
  RandomPrograms random{2, 2 * page_size};
  for (unsigned n = 0; n < 100; ++n)
    if (!random.run()) return;
  EXPECT_GT(random.made_room(), 50U);
  EXPECT_GT(random.compiled_blocks(), 500U);
}

// If a link cannot be made, blocks stay unlinked; if one cannot be removed, all compiled code is discarded.
TEST(CompiledCode, GoesOnWhereCodeCanNoLongerBeChanged) {
  RandomPrograms random{5};
  for (unsigned n = 0; n < 100; ++n) {
    random.allow_changes(n % 4 == 0 ? 0 : 40);
    if (!random.run()) return;
  }
  EXPECT_GT(random.made_room(), 4U) << "all code went";
  EXPECT_GT(random.compiled_blocks(), 500U);
}

TEST(CompiledCode, IsNoneWhereNoMemoryCanBeExecuted) {
  RandomPrograms random{3, 64, false};
  for (unsigned n = 0; n < 20; ++n)
    if (!random.run()) return;
  EXPECT_EQ(random.compiled_blocks(), 0U);
  EXPECT_GT(random.instructions(), 1000U);
}

}  // namespace
}  // namespace vpmu::exec::test
