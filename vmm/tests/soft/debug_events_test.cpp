// Traps, instruction, data and I/O breakpoints, NMI and interrupts around MOV SS and STI, in all combinations, against
// the manual's rules. SDM 3A 2.3 (RF), 6.8.3 (MOV SS), table 6-2 (priorities), 3B 17.2, 17.3.1.
#include <cstring>
#include <ostream>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/guest_code.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

constexpr unsigned timer_vector = 0x1F;
constexpr std::uint8_t port_begun = 0x55, port_end = 0x77, port_watched = 0x99;
constexpr std::uint64_t first_at = code_at + 0x400, watched_at = data_at + 0x40;

enum class Op : std::uint8_t { nop, sti, mov_ss, store, int3, int1, undefined, out };
constexpr std::array firsts{Op::nop, Op::sti, Op::mov_ss};
constexpr std::array seconds{Op::sti, Op::mov_ss, Op::store, Op::int3, Op::int1, Op::undefined, Op::out};

std::vector<std::uint8_t> code_of(Op op) {
  switch (op) {
    case Op::nop: return X86("nop");
    case Op::sti: return X86("sti");
    case Op::mov_ss: return X86("mov (%rbx), %ss");
    case Op::store: return X86("mov %al, (%rdx)");
    case Op::int3: return X86("int3");
    case Op::int1: return X86(".byte 0xF1");
    case Op::undefined: return X86("ud2");
    case Op::out: return {0xE6, port_watched};
  }
  return {};
}

/// Three instructions, of which the last is a NOP, and what is in force when they begin.
struct Case {
  Op first{}, second{};
  bool tf{}, rf{}, watches_ss{}, breaks_second{}, watches_store{}, watches_port{}, nmi{}, interrupt{};

  [[nodiscard]] std::uint64_t at_second() const { return first_at + code_of(first).size(); }
  [[nodiscard]] std::uint64_t at_third() const { return at_second() + code_of(second).size(); }
  [[nodiscard]] std::uint64_t at_end() const { return at_third() + 1; }
  [[nodiscard]] bool begins_with_if() const { return first != Op::sti && second != Op::sti; }
  [[nodiscard]] bool uses_all_registers() const { return watches_ss && breaks_second && watches_store && watches_port; }
  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << "first " << static_cast<int>(c.first) << " second " << static_cast<int>(c.second) << (c.tf ? " TF" : "")
         << (c.rf ? " RF" : "") << (c.watches_ss ? " DR0" : "") << (c.breaks_second ? " DR1" : "")
         << (c.watches_store ? " DR2" : "") << (c.watches_port ? " DR3" : "") << (c.nmi ? " NMI" : "")
         << (c.interrupt ? " INTR" : "");
  }
};

/// What a handler found, when it ended.
struct Entry {
  unsigned vector{};
  std::uint64_t rip{}, dr6{};
  bool rf{};
  friend bool operator==(const Entry&, const Entry&) = default;
  friend void PrintTo(const Entry& e, std::ostream* out) {
    *out << e.vector << std::hex << " at " << e.rip << " dr6 " << e.dr6 << std::dec << (e.rf ? " RF" : "");
  }
};

/// The manual's rules, for these instructions.
class Expected {
 public:
  explicit Expected(const Case& c) : c_{c}, tf_{c.tf}, if_{c.begins_with_if()}, rf_{c.rf} {
    execute(c.first, c.at_second());
    nmi_ = c.nmi;
    interrupt_ = c.interrupt;
    reach_next();
    while (at_ != c.at_end()) {
      const bool breaks = c.breaks_second && at_ == c.at_second() && !rf_ && !behind_ss_;
      if (breaks) {
        dr6_ = (dr6_ & ~x86::dr6::B::mask) | 2;
        deliver(x86::vector::DB, false);
        rf_ = true;  // as a debugger does before it goes on
      } else if (at_ == c.at_second()) {
        execute(c.second, c.at_third());
      } else {
        execute(Op::nop, c.at_end());
      }
      reach_next();
    }
  }
  std::vector<Entry> entries;

 private:
  /// Runs one instruction, of which `next` is the end. A trap behind it is left in `hits_`.
  void execute(Op op, std::uint64_t next) {
    const bool was_behind_ss = std::exchange(behind_ss_, false);
    behind_sti_ = rf_ = false;
    const std::uint64_t from = std::exchange(at_, next);
    hits_ = tf_ ? x86::dr6::BS::mask : 0;
    switch (op) {
      case Op::nop: break;
      case Op::sti:
        behind_sti_ = !if_;
        if_ = true;
        break;
      case Op::mov_ss:  // only the first of several holds anything off
        hits_ |= c_.watches_ss ? 1 : 0;
        behind_ss_ = !was_behind_ss;
        if (behind_ss_) held_ = std::exchange(hits_, 0) & x86::dr6::B::mask;  // the trap by TF is lost
        break;
      case Op::store: hits_ |= c_.watches_store ? 4 : 0; break;
      case Op::out: hits_ |= c_.watches_port ? 8 : 0; break;
      case Op::int3: hits_ = 0; return deliver(x86::vector::BP, false);
      case Op::int1:
        hits_ = 0;
        dr6_ |= std::exchange(held_, 0);
        return deliver(x86::vector::DB, false);
      case Op::undefined:
        hits_ = held_ = 0;
        at_ = from;
        deliver(x86::vector::UD, true);
        at_ = next;
        rf_ = false;
        return;
    }
    if (!behind_ss_) hits_ |= std::exchange(held_, 0);
  }
  /// What comes between two instructions: the trap of the one before, NMI, interrupts. SDM 3A table 6-2.
  void reach_next() {
    trap();
    if (behind_ss_ || behind_sti_) return;
    if (nmi_) take_nmi();
    if (!interrupt_ || !if_) return;
    interrupt_ = false;
    deliver(timer_vector, rf_);
  }
  void trap() {
    if (hits_ == 0) return;
    dr6_ = (dr6_ & ~x86::dr6::B::mask) | std::exchange(hits_, 0);
    deliver(x86::vector::DB, false);
  }
  void take_nmi() {
    nmi_ = false;
    deliver(x86::vector::NMI, rf_);
  }
  void deliver(unsigned vector, bool rf) {
    behind_ss_ = behind_sti_ = rf_ = false;
    const std::uint64_t from = std::exchange(at_, handler_of(vector));
    const bool tf = std::exchange(tf_, false), enabled = std::exchange(if_, false);
    hits_ = std::exchange(held_, 0);  // behind INT3
    trap();
    if (nmi_) take_nmi();
    const std::uint64_t dr6 = vector == x86::vector::DB ? std::exchange(dr6_, 0) : 0;
    entries.push_back({.vector = vector, .rip = from, .dr6 = dr6, .rf = rf});
    at_ = from;
    tf_ = tf;
    if_ = enabled;
    rf_ = rf;
  }

  Case c_;
  std::uint64_t at_{}, dr6_{}, hits_{}, held_{};
  bool tf_{}, if_{}, rf_{}, behind_ss_{}, behind_sti_{}, nmi_{}, interrupt_{};
};

/// How the guest runs.
enum class Way : std::uint8_t { plain, interpreted, counted };

/// Counts instructions from here on.
class StartOfCounting : public GuestCode {
 public:
  StartOfCounting() {
    write_msr(0x186, 0x43'00C0);
    write_msr(0x38F, 1);
  }
};

class DebugEvents : public SystemInstructions, public testing::WithParamInterface<Way> {
 protected:
  DebugEvents() {
    guest_.store_word(data_at, 0x18);
    for (const unsigned vector : {unsigned{x86::vector::DB}, unsigned{x86::vector::NMI}, unsigned{x86::vector::BP},
                                  unsigned{x86::vector::UD}, timer_vector}) {
      guest_.store_code(handler_of(vector), {0xE6, static_cast<std::uint8_t>(vector), 0x48, 0xCF});  // out; iretq
    }
    guest_.backend.special.cr4 |= vpmu::bit(3);  // DE: I/O breakpoints
  }

  void begin_way() {
    std::vector<std::uint8_t> code;
    if (GetParam() == Way::counted) code = StartOfCounting{}.bytes();
    code.insert(code.end(), {0xE6, port_begun});
    guest_.store_code(code_at, code);
    backend_.emplace(guest_.memory, cpuid_,
                     SoftStart{.sregs = guest_.backend.special,
                               .regs = guest_.backend.registers,
                               .compiling = GetParam() == Way::plain ? vpmu::exec::Compiling{.after = 1}
                                                                     : vpmu::exec::never_compiling,
                               .log = &log_});
    const PmuVcpuConfig config{.pmu = {.generation = vpmu::Generation::skylake},
                               .source = "exact",
                               .source_services = {.make_timer = backend_->timers()}};
    auto vcpu = PmuVcpu::create(config, *backend_, guest_.memory, log_);
    ASSERT_TRUE(vcpu);
    vcpu_ = std::move(*vcpu);
    const auto exit = vcpu_->run();
    ASSERT_TRUE(exit);
    ASSERT_EQ(std::get<PortWrite>(*exit).port, port_begun);
    ASSERT_TRUE(backend_->complete_exit());
    const std::uint32_t enabled = 0x1FF;
    apic_ = *backend_->lapic();
    std::memcpy(apic_.regs + 0xF0, &enabled, sizeof enabled);
  }

  /// The vCPU is at `code`, without breakpoints.
  void place(const std::vector<std::uint8_t>& code, std::uint64_t rflags) {
    guest_.store_code(first_at, code);
    backend_->written(vpmu::GuestPhysical{guest_.entry(first_at) & ~0xFFFULL});
    kvm_regs regs = *backend_->regs();
    regs.rip = first_at;
    regs.rsp = stack_top - 64;
    regs.rbx = data_at;
    regs.rdx = watched_at;
    regs.rflags = rflags;
    ASSERT_TRUE(backend_->set_regs(regs));
    ASSERT_TRUE(backend_->set_debugregs({.dr7 = 0x400}));
    ASSERT_TRUE(backend_->set_events({}));
    backend_->set_lapic(apic_);
  }

  void start(const Case& c) {
    std::vector<std::uint8_t> code = code_of(c.first);
    for (const std::uint8_t byte : code_of(c.second)) code.push_back(byte);
    code.insert(code.end(), {0x90, 0xE6, port_end});
    place(code, 2 | (c.tf ? x86::rflags::TF::mask : 0) | (c.rf ? x86::rflags::RF::mask : 0) |
                    (c.begins_with_if() ? x86::rflags::IF::mask : 0));
    kvm_debugregs debug{};
    debug.db[0] = data_at;
    debug.db[1] = c.at_second();
    debug.db[2] = watched_at;
    debug.db[3] = port_watched;
    debug.dr7 = 0x400 | (c.watches_ss ? 1U : 0U) | (c.breaks_second ? 4U : 0U) | (c.watches_store ? 0x10U : 0U) |
                (c.watches_port ? 0x40U : 0U) | 0x7U << 16 | 0x1U << 24 | 0x2U << 28;
    ASSERT_TRUE(backend_->set_debugregs(debug));
    // Behind an interrupt shadow they do not come before the first instruction.
    kvm_vcpu_events events{};
    if (c.nmi || c.interrupt) events.interrupt.shadow = KVM_X86_SHADOW_INT_STI;
    ASSERT_TRUE(backend_->set_events(events));
    ASSERT_TRUE(!c.nmi || backend_->nmi());
    ASSERT_TRUE(!c.interrupt || backend_->interrupt(0, timer_vector));
  }

  /// Runs to the end; what the handlers found.
  std::vector<Entry> entries() {
    std::vector<Entry> all;
    constexpr unsigned max = 200;
    for (unsigned n = 0; n < max; ++n) {
      const auto exit = vcpu_->run();
      const auto* out = exit ? std::get_if<PortWrite>(&*exit) : nullptr;
      if (out == nullptr) {
        ADD_FAILURE() << "exit " << (exit ? exit->index() : 99);
        return all;
      }
      if (out->port == port_end) {
        EXPECT_TRUE(backend_->complete_exit());
        return all;
      }
      if (out->port == port_watched) continue;
      note(all, static_cast<std::uint8_t>(out->port));
    }
    ADD_FAILURE() << "no end";
    return all;
  }

  /// A handler ends. It clears DR6 after a #DB, lets a broken instruction go on, and skips an undefined one.
  void note(std::vector<Entry>& all, std::uint8_t vector) {
    const std::uint64_t frame = backend_->regs()->rsp;
    const std::uint64_t rip = guest_.load_word(frame), flags = guest_.load_word(frame + 16);
    Entry entry{.vector = vector, .rip = rip, .rf = x86::rflags::RF::test(flags)};
    if (vector == x86::vector::DB) {
      kvm_debugregs debug = *backend_->debugregs();
      entry.dr6 = debug.dr6 & (x86::dr6::B::mask | x86::dr6::BS::mask);
      debug.dr6 = 0;
      ASSERT_TRUE(backend_->set_debugregs(debug));
      if ((entry.dr6 & 2) != 0) guest_.store_word(frame + 16, flags | x86::rflags::RF::mask);
    }
    if (vector == x86::vector::UD) {
      guest_.store_word(frame, rip + 2);
      guest_.store_word(frame + 16, flags & ~x86::rflags::RF::mask);
    }
    all.push_back(entry);
  }

  std::unique_ptr<PmuVcpu> vcpu_;
  kvm_lapic_state apic_{};
};

TEST_P(DebugEvents, OfTwoInstructionsInAllCombinations) {
  begin_way();
  std::size_t max = 0;
  for (const Op first : firsts)
    for (const Op second : seconds)
      for (unsigned bits = 0; bits < 256; ++bits) {
        const auto bit = [&](unsigned n) { return (bits >> n & 1) != 0; };
        const Case c{first, second, bit(0), bit(1), bit(2), bit(3), bit(4), bit(5), bit(6), bit(7)};
        if (GetParam() == Way::counted && c.tf && c.uses_all_registers()) continue;  // the source takes DR3's place
        start(c);
        const std::vector<Entry> expected = Expected{c}.entries;
        max = std::max(max, expected.size());
        ASSERT_EQ(entries(), expected) << testing::PrintToString(c);
      }
  EXPECT_GE(max, 4U) << "traps, breakpoints, NMI and interrupt in one case";
}

/// MOVSB, repeated, of 8 bytes, of which the sixth that is written is watched by DR2.
class DebugEventsOfAString : public DebugEvents {
 protected:
  void start_string(std::uint64_t dr7) {
    place({0xF3, 0xA4, 0x90, 0xE6, port_end}, 2);
    kvm_regs regs = *backend_->regs();
    regs.rsi = data_at + 0x100;
    regs.rdi = data_at + 0x200;
    regs.rcx = 8;
    ASSERT_TRUE(backend_->set_regs(regs));
    ASSERT_TRUE(backend_->set_debugregs({.db = {0, first_at, data_at + 0x205, 0}, .dr7 = dr7}));
    guest_.store_word(data_at + 0x100, 0x1122'3344'5566'7788);
    guest_.store_word(data_at + 0x200, 0);
  }
  void expect_done() { EXPECT_EQ(guest_.load_word(data_at + 0x200), 0x1122'3344'5566'7788U); }
};

// The trap comes behind the iteration, with RF set, as the instruction is not done. SDM 3B 17.3.1.1, 17.3.1.2.
TEST_P(DebugEventsOfAString, ADataBreakpointHitsBehindItsIteration) {
  begin_way();
  start_string(0x400 | 0x10 | 0x1U << 24);
  EXPECT_EQ(entries(), (std::vector{Entry{.vector = x86::vector::DB, .rip = first_at, .dr6 = 4, .rf = true}}));
  expect_done();
}
// RF keeps the instruction breakpoint from hitting again between iterations.
TEST_P(DebugEventsOfAString, AnInstructionBreakpointHitsOnce) {
  begin_way();
  start_string(0x400 | 0x14 | 0x1U << 24);
  EXPECT_EQ(entries(), (std::vector{Entry{.vector = x86::vector::DB, .rip = first_at, .dr6 = 2},
                                    Entry{.vector = x86::vector::DB, .rip = first_at, .dr6 = 4, .rf = true}}));
  expect_done();
}
// The trap behind the last iteration is that of the whole instruction.
TEST_P(DebugEventsOfAString, BehindTheLastIterationRfIsClear) {
  begin_way();
  start_string(0x400 | 0x10 | 0x1U << 24);
  kvm_debugregs debug = *backend_->debugregs();
  debug.db[2] = data_at + 0x207;
  ASSERT_TRUE(backend_->set_debugregs(debug));
  EXPECT_EQ(entries(), (std::vector{Entry{.vector = x86::vector::DB, .rip = first_at + 2, .dr6 = 4}}));
  expect_done();
}
// An interrupt between two iterations pushes RF, too. SDM 3A 2.3.
TEST_P(DebugEventsOfAString, AnNmiBetweenIterationsPushesRf) {
  if (GetParam() == Way::counted) GTEST_SKIP() << "a counted string instruction is not interrupted";
  begin_way();
  constexpr std::uint64_t target = 0xA0'0000, size = 0x2'0000;
  guest_.map(target, size);
  place({0xF3, 0xAA, 0x90, 0xE6, port_end}, 2);  // rep stosb
  kvm_regs regs = *backend_->regs();
  regs.rdi = target;
  regs.rcx = size;
  ASSERT_TRUE(backend_->set_regs(regs));
  kvm_vcpu_events events{};
  events.interrupt.shadow = KVM_X86_SHADOW_INT_STI;
  ASSERT_TRUE(backend_->set_events(events));
  ASSERT_TRUE(backend_->nmi());
  EXPECT_EQ(entries(), (std::vector{Entry{.vector = x86::vector::NMI, .rip = first_at, .rf = true}}));
  EXPECT_EQ(backend_->regs()->rcx, 0U);
}

// A hit that MOV SS holds is reported where SYSCALL leads to. SDM 3A 6.8.3.
TEST_P(DebugEvents, BehindSyscallTheHeldHitIsReportedAtItsTarget) {
  constexpr std::uint64_t target = code_at + 0x600;
  guest_.backend.special.efer |= x86::efer::SCE::mask;
  begin_way();
  guest_.store_code(target, {0xE6, port_end});
  ASSERT_TRUE(backend_->set_msr(0xC000'0081, 0x10ULL << 32));
  ASSERT_TRUE(backend_->set_msr(0xC000'0082, target));
  place(X86("mov (%rbx), %ss; syscall"), 2);
  ASSERT_TRUE(backend_->set_debugregs({.db = {data_at, 0, 0, 0}, .dr7 = 0x400 | 1 | 0x7U << 16}));
  EXPECT_EQ(entries(), (std::vector{Entry{.vector = x86::vector::DB, .rip = target, .dr6 = 1}}));
}

constexpr auto name_of_way = [](const testing::TestParamInfo<Way>& way) {
  return way.param == Way::plain ? "Compiled" : way.param == Way::interpreted ? "Interpreted" : "Counted";
};
constexpr std::array ways{Way::plain, Way::interpreted, Way::counted};
INSTANTIATE_TEST_SUITE_P(Guest, DebugEvents, testing::ValuesIn(ways), name_of_way);
INSTANTIATE_TEST_SUITE_P(Guest, DebugEventsOfAString, testing::ValuesIn(ways), name_of_way);

}  // namespace
}  // namespace vmm::test
