// A vCPU without KVM that is saved and continues elsewhere: the guest cannot notice.
#include <cstring>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/guest_code.hpp"
#include "fakes/model_cpuid.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_board.hpp"
#include "soft/system_fixture.hpp"

namespace vmm::test {
namespace {

constexpr unsigned image_timer_vector = 31;
constexpr std::uint64_t interrupts_at = data_at, sum_at = data_at + 8;

class SoftImage : public SystemInstructions {
 protected:
  SoftImage() {
    cpuid_ = cpuid_of("skylake");
    auto& sregs = guest_.backend.special;
    sregs.apic_base = 0xFEE0'0D00;
    sregs.cr4 |= vpmu::bit(9);  // OSFXSR
    // Counts in interrupts_at, and tells the x2APIC the end of the interrupt.
    guest_.store_code(
        handler_of(image_timer_vector),
        X86("incl 0x900000; push %rax; push %rcx; push %rdx; mov $0x80B, %ecx; xor %eax, %eax; xor %edx, %edx; "
            "wrmsr; pop %rdx; pop %rcx; pop %rax; iretq"));
    store_program();
  }
  /// Adds up, 500 times, the sum of RDTSC values in XMM1 and a number of RDRAND, while a periodic timer interrupts.
  void store_program() {
    std::vector<std::uint8_t> code;
    const auto wrmsr = [&code](std::uint32_t index, std::uint32_t value) {
      const auto word = [&code](std::uint8_t opcode, std::uint32_t w) {
        code.push_back(opcode);
        for (unsigned shift = 0; shift < 32; shift += 8) code.push_back(static_cast<std::uint8_t>(w >> shift));
      };
      word(0xB9, index);
      word(0xB8, value);
      append(code, X86("xor %edx, %edx; wrmsr"));
    };
    wrmsr(0x80F, 0x1FF);                          // the APIC on
    wrmsr(0x832, 0x2'0000 | image_timer_vector);  // periodic
    wrmsr(0x83E, 0x0);                            // in units of two ticks
    wrmsr(0x838, 101);
    append(code, X86("sti; mov $500, %esi; "
                     "1: rdtsc; "
                     "movd %eax, %xmm0; paddd %xmm0, %xmm1; "
                     "movd %xmm1, %ecx; "
                     "add %rcx, 0x900008; "
                     "rdrand %edx; "
                     "add %rdx, 0x900008; "
                     "dec %esi; jne 1b; cli; hlt"));
    guest_.store_code(code_at, code);
  }
  void be_new() {
    guest_.store_word(interrupts_at, 0);
    guest_.store_word(sum_at, 0);
  }
  struct End {
    std::uint64_t interrupts, sum, tsc, rip, instructions;
    bool operator==(const End&) const = default;
  };
  End end_of(SoftBackend& backend) {
    return {.interrupts = guest_.load_word(interrupts_at),
            .sum = guest_.load_word(sum_at),
            .tsc = *backend.tsc(),
            .rip = backend.regs()->rip,
            .instructions = 0};
  }
  Bytes saved_after(std::uint64_t ticks) {
    be_new();
    SoftBackend& backend = begin();
    backend.stop_after(ticks);
    const auto exit = backend.run();
    EXPECT_TRUE(exit && std::holds_alternative<TimeUp>(*exit));
    return save();
  }
  /// A new processor on a machine whose clock is at 0.
  SoftBackend& begin() {
    backend_.reset();
    board_.emplace();
    return backend_.emplace(guest_.memory, cpuid_,
                            SoftStart{.sregs = guest_.backend.special, .regs = guest_.backend.registers, .log = &log_},
                            &*board_);
  }
  /// Saves the processor, and the machine's clock in clock_.
  Bytes save() {
    clock_ = board_->clock.image();
    return backend_->save();
  }
  Result<void> restore(const Bytes& image) {
    EXPECT_TRUE(board_->clock.restore(clock_, 1));
    return backend_->restore(image);
  }
  std::string refusal(const Bytes& image) {
    const auto done = begin().restore(image);
    return done ? std::string{} : describe(done.error());
  }

  std::optional<SoftBoard> board_;
  MachineClock::Image clock_;
};

TEST_F(SoftImage, GoesOnAtAnyInstruction) {
  be_new();
  SoftBackend& whole = begin();
  finish(whole);
  const End expected = end_of(whole);
  EXPECT_GT(expected.interrupts, 10U);
  EXPECT_EQ(expected.rip, handler_of(0) - 0x800 + 0x65) << "the end of the program";
  for (const std::uint64_t ticks : {1U, 5U, 30U, 222U, 223U, 224U, 1000U, 3333U}) {
    const Bytes image = saved_after(ticks);
    SoftBackend& backend = begin();
    const auto restored = restore(image);
    ASSERT_TRUE(restored) << describe(restored.error());
    EXPECT_EQ(backend.save(), image) << "and is what it was";
    finish(backend);
    EXPECT_EQ(end_of(backend), expected) << "saved after " << ticks;
  }
}

// Pending events, debug registers, MSRs and the APIC are part of the image.
TEST_F(SoftImage, HasWhatIsNotInRegisters) {
  SoftBackend& backend = begin();
  ASSERT_TRUE(backend.nmi());
  kvm_debugregs debug{};
  debug.db[2] = 0x1234;
  debug.dr7 = 0x10;
  ASSERT_TRUE(backend.set_debugregs(debug));
  ASSERT_TRUE(backend.set_msr(0x1D9, 2));                // DEBUGCTL.BTF
  ASSERT_TRUE(backend.set_msr(0xC000'0082, 0x40'1000));  // IA32_LSTAR
  kvm_lapic_state apic = *backend.lapic();
  apic.regs[0xF1] = 1;  // enabled
  backend.set_lapic(apic);
  ASSERT_TRUE(backend.interrupt(0, 0x44));
  apic = *backend.lapic();
  const Bytes image = backend.save();
  SoftBackend& other = begin();
  ASSERT_TRUE(other.restore(image));
  EXPECT_EQ(other.events()->nmi.pending, 1);
  EXPECT_EQ(other.debugregs()->db[2], 0x1234U);
  EXPECT_EQ(*other.msr(0x1D9), 2U);
  EXPECT_EQ(*other.msr(0xC000'0082), 0x40'1000U);
  EXPECT_EQ(std::memcmp(other.lapic()->regs, apic.regs, sizeof apic.regs), 0);
  EXPECT_NE(apic.regs[0x220], 0) << "a request waits";
}

TEST_F(SoftImage, ThatIsCutShortIsRefused) {
  const Bytes image = saved_after(100);
  ASSERT_EQ(refusal(image), "");
  for (std::size_t size = 0; size < image.size(); size += 7)
    EXPECT_NE(refusal({image.begin(), image.begin() + static_cast<std::ptrdiff_t>(size)}), "") << size;
}

TEST_F(SoftImage, OfAnotherProcessorIsRefused) {
  const Bytes image = saved_after(100);
  cpuid_ = cpuid_of("nehalem");
  const std::string why = refusal(image);
  EXPECT_NE(why.find("restore it on a host whose CPU has the features"), std::string::npos) << why;
  EXPECT_NE(why.find("avx2"), std::string::npos) << why;
}

/// Offsets of the parts of an image.
struct Places {
  static constexpr std::size_t words = (8 + 3 + 6) * 8, regs = words, rflags = regs + 17 * 8,
                               sregs = regs + sizeof(kvm_regs);
  static constexpr std::size_t of(std::size_t member) { return sregs + member; }
};

TEST_F(SoftImage, WithAStateThatNoProcessorIsInIsRefused) {
  const Bytes image = saved_after(100);
  const auto with = [&](std::size_t at, auto value) {
    Bytes changed = image;
    std::memcpy(changed.data() + at, &value, sizeof value);
    return refusal(changed);
  };
  const auto refuses = [&](std::string_view what, std::size_t at, auto value) {
    EXPECT_NE(with(at, value).find(what), std::string::npos) << what << ": " << with(at, value);
  };
  const std::uint64_t all = ~0ULL;
  constexpr std::size_t debug = Places::of(sizeof(kvm_sregs)), events = debug + sizeof(kvm_debugregs),
                        apic = events + sizeof(kvm_vcpu_events), legacy = apic + sizeof(kvm_lapic_state),
                        xcr0 = legacy + 512 + 256, msrs = xcr0 + 16;
  refuses("another format", 4 * 8, std::uint64_t{0x100});              // a start-up IPI's vector
  refuses("another format", (8 + 3 + 3) * 8, std::uint64_t{0});        // the timer's divisor
  refuses("RFLAGS 0x20202", Places::rflags, std::uint64_t{0x2'0202});  // virtual-8086 mode
  refuses("RFLAGS 0x0", Places::rflags, std::uint64_t{0});
  refuses("CR0", Places::of(offsetof(kvm_sregs, cr0)), all);
  refuses("CR0", Places::of(offsetof(kvm_sregs, cr0)), std::uint64_t{vpmu::bit(31)});
  refuses("CR4", Places::of(offsetof(kvm_sregs, cr4)), all);
  refuses("CR4", Places::of(offsetof(kvm_sregs, cr4)), std::uint64_t{0});
  refuses("IA32_EFER", Places::of(offsetof(kvm_sregs, efer)), std::uint64_t{vpmu::bit(10)});
  refuses("IA32_APIC_BASE", Places::of(offsetof(kvm_sregs, apic_base)), all);
  refuses("impossible segment", Places::of(offsetof(kvm_sregs, ss) + offsetof(kvm_segment, dpl)), std::uint8_t{4});
  refuses("impossible segment", Places::of(offsetof(kvm_sregs, cs) + offsetof(kvm_segment, type)), std::uint8_t{16});
  refuses("impossible segment", Places::of(offsetof(kvm_sregs, cs) + offsetof(kvm_segment, l)), std::uint8_t{2});
  refuses("another format", events + offsetof(kvm_vcpu_events, exception.nr), std::uint8_t{32});
  refuses("another format", events + offsetof(kvm_vcpu_events, nmi.pending), std::uint8_t{3});
  refuses("MXCSR", legacy + 24, std::uint32_t{0x1'0000});
  refuses("XCR0", xcr0, std::uint64_t{5});
  refuses("in MSR 0x1234", msrs, std::uint32_t{0x1234});
  refuses("in MSR 0x17", msrs + 8, all);
  EXPECT_EQ(with(Places::of(offsetof(kvm_sregs, cr2)), all), "") << "which may be anything";
}

/// Loads from each line of a buffer that fits in the L1, over and over, and counts the hits and misses of the model.
/// Before each round, while nothing counts, it writes another value to CR3, so that no translation is kept.
class Walk : public GuestCode {
 public:
  static constexpr std::uint64_t buffer = 0xA0'0000, buffer_bytes = 24 << 10, rounds = 8,
                                 loads = rounds * buffer_bytes / 64;
  explicit Walk(bool interrupted) {
    if (interrupted) {
      write_msr(0x80F, 0x1FF);
      write_msr(0x832, 0x2'0000 | image_timer_vector);
      write_msr(0x838, 101);
      add(X86("sti"));
    }
    for (unsigned n = 0; n < events.size(); ++n) write_msr(0x186 + n, 0x43'0000 | events[n]);
    move(rsi, rounds);
    write_msr(0x38F, 0);
    add(X86("mov %cr3, %rax; xor $8, %rax; mov %rax, %cr3"));
    write_msr(0x38F, 0xF);
    move(rdi, buffer);
    add(X86("mov (%rdi), %rax; add $64, %rdi"));
    add(X86("cmp $0xA06000, %edi; jne .-13"));        // to the load
    add(X86("dec %esi; jne .-101; out %al, $0x80"));  // to the first WRMSR
  }
  /// MEM_LOAD_RETIRED.L1_MISS, .L1_HIT, .FB_HIT, MEM_INST_RETIRED.STLB_MISS_LOADS.
  static constexpr std::array<std::uint64_t, 4> events{0x08D1, 0x01D1, 0x40D1, 0x11D0};
};

class ExactImage : public SoftImage {
 protected:
  ExactImage() {
    guest_.map(Walk::buffer, Walk::buffer_bytes);
    guest_.store(code_at, std::as_bytes(std::span{Walk{false}.bytes()}));
  }
  void make(std::uint64_t ticks) {
    vcpu_.reset();
    begin().stop_after(ticks);
    auto vcpu = PmuVcpu::create({.pmu = {.generation = vpmu::Generation::skylake},
                                 .source = "exact",
                                 .source_services = {.make_timer = backend_->timers()}},
                                *backend_, guest_.memory, log_);
    ASSERT_TRUE(vcpu);
    vcpu_ = std::move(*vcpu);
  }
  bool runs_to_its_end() {
    for (unsigned n = 0; n < 1000; ++n) {
      const auto exit = vcpu_->run();
      if (!exit || std::holds_alternative<TimeUp>(*exit)) return false;
      if (std::holds_alternative<PortWrite>(*exit)) return true;
    }
    return false;
  }
  std::array<std::uint64_t, 4> counted() {
    std::array<std::uint64_t, 4> all{};
    for (unsigned n = 0; n < all.size(); ++n) all[n] = vcpu_->pmu().rdmsr(vpmu::msr::IA32_PMC0 + n).value;
    return all;
  }

  std::unique_ptr<PmuVcpu> vcpu_;
};

TEST_F(ExactImage, HasTheModelsCachesAndTlbs) {
  make(~0ULL);
  ASSERT_TRUE(runs_to_its_end());
  const auto expected = counted();
  const std::uint64_t tsc = *backend_->tsc();
  EXPECT_GE(expected[0], Walk::buffer_bytes / 64) << "all lines once";
  EXPECT_LT(expected[0], Walk::loads / 2);
  EXPECT_GE(expected[3], Walk::rounds * Walk::buffer_bytes / vpmu::page_size) << "all pages in each round";
  std::vector<std::uint64_t> moments{20, 3000, 9000};
  for (std::uint64_t ticks = 1540; ticks < 1600; ++ticks) moments.push_back(ticks);  // around the second round
  for (const std::uint64_t ticks : moments) {
    make(ticks);
    ASSERT_FALSE(runs_to_its_end());
    const Bytes processor = save(), pmu = *vcpu_->save();
    make(~0ULL);
    ASSERT_TRUE(restore(processor));
    const auto restored = vcpu_->restore(pmu);
    ASSERT_TRUE(restored) << describe(restored.error());
    ASSERT_TRUE(runs_to_its_end());
    EXPECT_EQ(counted(), expected) << "saved after " << ticks;
    EXPECT_EQ(*backend_->tsc(), tsc);
  }
}

// The engine must execute every load itself, also at an instruction where a timer interrupts. Else the model misses it.
TEST_F(ExactImage, TheModelSeesEachLoad) {
  guest_.store(code_at, std::as_bytes(std::span{Walk{true}.bytes()}));
  make(~0ULL);
  be_new();
  ASSERT_TRUE(runs_to_its_end());
  const std::uint64_t interrupts = guest_.load_word(interrupts_at);
  EXPECT_GT(interrupts, 50U);
  constexpr std::uint64_t loads_of_handler = 4;
  const auto seen = counted();
  EXPECT_EQ(seen[0] + seen[1] + seen[2], Walk::loads + loads_of_handler * interrupts);
}

TEST_F(ExactImage, RefusesAnotherModel) {
  make(9000);
  ASSERT_FALSE(runs_to_its_end());
  Bytes pmu = *vcpu_->save();
  pmu.pop_back();
  make(~0ULL);
  EXPECT_FALSE(vcpu_->restore(pmu));
  // The source's state is the last part: remove one byte of it, and adapt its size.
  const std::size_t source = sizeof(PmuVcpuState) + 8 + 5;
  std::uint64_t size{};
  std::memcpy(&size, pmu.data() + source, sizeof size);
  ASSERT_EQ(size, pmu.size() - source - 8 + 1) << "where it stands";
  --size;
  std::memcpy(pmu.data() + source, &size, sizeof size);
  make(~0ULL);
  const auto refused = vcpu_->restore(pmu);
  ASSERT_FALSE(refused);
  EXPECT_NE(describe(refused.error()).find("state of the source exact"), std::string::npos);
}

// A kick stops the engine, but must not delay the next timer interrupt.
TEST_F(SoftImage, AKickMovesNoInterrupt) {
  const auto make_vcpu = [&] {
    be_new();
    begin();
    auto vcpu = PmuVcpu::create({.pmu = {.generation = vpmu::Generation::skylake},
                                 .source = "exact",
                                 .source_services = {.make_timer = backend_->timers()}},
                                *backend_, guest_.memory, log_);
    EXPECT_TRUE(vcpu);
    for (const auto& [index, value] :
         {std::pair{vpmu::msr::IA32_PERFEVTSEL0, 0x43'00C0ULL}, std::pair{vpmu::msr::IA32_PERF_GLOBAL_CTRL, 1ULL}})
      EXPECT_EQ((*vcpu)->pmu().wrmsr(index, value), vpmu::MsrStatus::ok);
    const PmuVcpuState state = (*vcpu)->state();
    EXPECT_TRUE((*vcpu)->restore(state));
    return std::move(*vcpu);
  };
  const auto to_the_end = [&](PmuVcpu& vcpu) {
    for (unsigned n = 0; n < 100'000; ++n) {
      const auto exit = vcpu.run();
      if (!exit || std::holds_alternative<Hlt>(*exit)) break;
    }
    return end_of(*backend_);
  };
  const End expected = to_the_end(*make_vcpu());
  ASSERT_GT(expected.interrupts, 10U);
  for (const std::uint64_t ticks : {150U, 700U, 1555U}) {
    const auto vcpu = make_vcpu();
    backend_->stop_after(ticks);
    const auto exit = vcpu->run();
    ASSERT_TRUE(exit && std::holds_alternative<TimeUp>(*exit));
    *backend_->kick_target() = 1;
    backend_->stop_after(~0ULL);
    EXPECT_EQ(to_the_end(*vcpu), expected) << "kicked after " << ticks;
  }
}

}  // namespace
}  // namespace vmm::test
