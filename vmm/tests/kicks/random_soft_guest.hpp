#pragma once
#include <array>
#include <memory>
#include <random>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "fakes/guest_code.hpp"
#include "pmu/pmu_vcpu.hpp"
#include "soft/soft_backend.hpp"

namespace vmm::test {

/// A guest's program of random pieces that can keep a processor busy: accesses to all of the PMU's MSRs, exceptions in
/// exception handlers, halts, string instructions of any length, timers that interrupt all the time, self-modifying
/// code, debug registers, other rings.
class RandomProgram : public GuestCode {
 public:
  static constexpr std::uint64_t code = 0x40'0000, code_bytes = 0x4000, stack = 0x50'0000, tables = 0x60'0000,
                                 gdt = tables + 0x1000, tss = tables + 0x1800, ds_area = 0x62'0000, buffer = 0x63'0000,
                                 apic = 0x70'0000, device = 0x71'0000, nowhere = 0x72'0000, data = 0x80'0000,
                                 data_bytes = 0x40'0000;

  explicit RandomProgram(std::mt19937_64& random) : random_{&random} {
    use_counters();
    while (size() < code_bytes - 128) add_piece();
    add({0xE9});
    add_word(static_cast<std::uint32_t>(0 - (size() + 4)), 4);
  }

 private:
  std::uint64_t draw(std::uint64_t below) { return (*random_)() % below; }
  std::uint64_t place() {
    const std::array<std::uint64_t, 10> places{code, stack,  tables,  ds_area, buffer,
                                               apic, device, nowhere, data,    0x8000'0000'0000'0000};
    return places[draw(places.size())] + draw(0x1000);
  }
  /// At least one counter counts everything, overflows soon, and wants an interrupt.
  void use_counters() {
    for (unsigned n = 0; n < 4; ++n) select(n);
    write_msr(0xC1, 0 - (1 + draw(200)));
    write_msr(0x186, 0x53'00C0 | (draw(2) != 0 ? 0 : 0x10'0000));
    write_msr(0x38F, 0x7'0000'000F);
  }
  void select(unsigned counter) {
    const std::array<std::uint64_t, 6> events{0x00C0, 0x003C, 0x00C4, 0x81D0, 0x82D0, 0x01CD};
    write_msr(0x186 + counter, events[draw(events.size())] | 0x40'0000 | draw(256) << 16);
    write_msr(0xC1 + counter, 0 - (1 + draw(1000)));
  }
  void write_some_msr() {
    switch (draw(12)) {
      case 0: return select(static_cast<unsigned>(draw(4)));
      case 1: return write_msr(0x38D, draw(0x1000));
      case 2: return write_msr(0x309 + static_cast<std::uint32_t>(draw(3)), 0 - (1 + draw(1000)));
      case 3: return write_msr(0x38F, draw(2) != 0 ? 0x7'0000'000F : draw(16));
      case 4: return write_msr(0x390, (*random_)() & 0xE000'0007'0000'000F);
      case 5: return write_msr(0x3F1, draw(16));
      case 6: return write_msr(0x600, draw(2) != 0 ? ds_area : place());
      case 7: return write_msr(0x1D9, draw(0x2000) & 0x1FC3);
      case 8: return write_msr(0x834, one_lvt());
      case 9: return write_msr(0x6E0, draw(1U << 20U));
      case 10: return write_msr(static_cast<std::uint32_t>(draw(0x1000)), (*random_)());
      default: return write_msr(0xC000'0081 + static_cast<std::uint32_t>(draw(4)), place());
    }
  }
  /// Masked, NMI, fixed, SMI, ExtINT, INIT.
  std::uint32_t one_lvt() {
    const std::array<std::uint32_t, 7> all{0x1'0000, 0x400, 0x1'0400, 0xE0, 0x200, 0x700, 0x500};
    return all[draw(all.size())];
  }
  void write_apic() {
    const std::array<std::uint32_t, 7> registers{0x340, 0x320, 0x380, 0x3E0, 0xF0, 0x300, 0xB0};
    move(rax, apic + registers[draw(registers.size())]);
    const std::array<std::uint32_t, 5> values{one_lvt(), 0x2'0000U | static_cast<std::uint32_t>(32 + draw(224)),
                                              static_cast<std::uint32_t>(draw(100)),
                                              0x4'0000U | static_cast<std::uint32_t>(32 + draw(224)), 0x1FF};
    add({0xC7, 0x00});
    add_word(values[draw(values.size())], 4);
  }
  void string_instruction() {
    move(rsi, draw(4) != 0 ? data + draw(0x1000) : place());
    move(rdi, draw(4) != 0 ? data + draw(data_bytes) : place());
    move(rcx, 1ULL << draw(50));
    const std::array<std::uint8_t, 5> opcodes{0xA5, 0xAB, 0xAD, 0xAF, 0xA7};
    add({static_cast<std::uint8_t>(draw(2) != 0 ? 0xF3 : 0xF2), 0x48,
         static_cast<std::uint8_t>(opcodes[draw(opcodes.size())] - draw(2))});
  }
  void return_to_ring_3() {
    move(rax, code + draw(code_bytes));
    add({0x6A, 0x2B, 0x68});  // ss; rsp
    add_word(stack + 0x1800, 4);
    add({0x68});
    add_word(draw(2) != 0 ? 0x202 : 0x302, 4);
    add(X86("push $0x33; push %rax; iretq"));  // CS, RIP
  }
  void loop() {
    move(rcx, 1ULL << draw(32));
    add(X86("fld1; fpatan; fstp %st(0)"));
    add({0xE2, static_cast<std::uint8_t>(draw(2) != 0 ? 0xF8 : 0xFE)});
  }
  void add_piece() {
    switch (draw(22)) {
      case 0:
      case 1:
      case 2:
      case 3: return write_some_msr();
      case 4: return write_apic();
      case 5: return string_instruction();
      case 6: return loop();
      case 7: return return_to_ring_3();
      case 8: return add(X86("sti; hlt"));
      case 9: return add({static_cast<std::uint8_t>(0xFA + draw(2))});
      case 10: return add({0xCD, static_cast<std::uint8_t>(draw(256))});
      case 11: return add(X86("ud2"));
      case 12: return add(X86("xor %ecx, %ecx; div %ecx"));
      case 13: move(rax, place()); return add(X86("mov (%rax), %rcx; mov %rcx, 4(%rax)"));
      case 14:
        move(rbx, code + draw(code_bytes));
        return add(X86("addb $0, (%rbx)"));  // writes its own code, without changing it
      case 15:
        move(rax, (*random_)() & 0xFFFF'0FFF);
        return add({0x0F, 0x23, static_cast<std::uint8_t>(0xF8 - 8 * draw(5))});  // debug registers
      case 16: return add(X86("pushf; orl $0x100, (%rsp); popf"));                // TF
      case 17: return add(X86("mov %cr3, %rax; mov %rax, %cr3"));
      case 18: move(rcx, draw(5)); return add(X86("rdpmc"));
      case 19: return add({0xE6, static_cast<std::uint8_t>(draw(256))});
      case 20:
        for (std::uint64_t n = draw(12); n > 0; --n) add({static_cast<std::uint8_t>(draw(256))});
        return;
      default: return add({0xEB, static_cast<std::uint8_t>(draw(256))});
    }
  }

  std::mt19937_64* random_;
};

/// A random program with random tables, DS area and start state, on a vCPU without KVM.
class RandomSoftGuest {
 public:
  RandomSoftGuest(std::uint64_t seed, std::string_view source, vpmu::exec::Compiling compiling) : random_{seed} {
    using P = RandomProgram;
    const PageUse all{.is_user = true};
    guest_.map(P::code, P::code_bytes, all);
    for (const std::uint64_t page : {P::stack, P::tables, P::ds_area, P::buffer})
      guest_.map(page, 2 * vpmu::page_size, all);
    guest_.map(P::data, vpmu::page_size, all);
    const std::uint64_t frame = guest_.entry(P::data) & ~0xFFFULL;
    for (std::uint64_t page = P::data; page < P::data + P::data_bytes; page += vpmu::page_size)
      guest_.map_to(page, frame, all);
    guest_.map_to(P::apic, 0xFEE0'0000, all);
    guest_.map_to(P::device, 0xD000'0000, all);
    const std::vector<std::uint8_t> program = RandomProgram{random_}.bytes();
    for (std::size_t at = 0; at < program.size(); at += vpmu::page_size)
      guest_.store(P::code + at, std::as_bytes(std::span{program}.subspan(
                                     at, std::min<std::size_t>(vpmu::page_size, program.size() - at))));
    set_tables();
    set_ds();
    auto& start = guest_.backend;
    start.registers.rip = P::code;
    start.registers.rsp = P::stack + 0x1000;
    if (random_() % 2 != 0) start.registers.rflags |= vpmu::bit(9);
    start.special.cr4 |= vpmu::bit(9);  // SSE
    start.special.apic_base = random_() % 2 != 0 ? 0xFEE0'0900 : 0xFEE0'0D00;
    backend_.emplace(guest_.memory, CpuidTable{},
                     SoftStart{.sregs = start.special, .regs = start.registers, .compiling = compiling});
    const PmuVcpuConfig config{.source = source, .source_services = {.make_timer = backend_->timers()}};
    auto made = PmuVcpu::create(config, *backend_, guest_.memory, log_);
    EXPECT_TRUE(made);
    vcpu_ = std::move(*made);
  }

  [[nodiscard]] Result<Exit> run() { return vcpu_->run(); }
  [[nodiscard]] SoftBackend& backend() { return *backend_; }

 private:
  void set_tables() {
    using P = RandomProgram;
    guest_.store_word(P::gdt + 0x10, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(P::gdt + 0x18, 0x00CF'9300'0000'FFFF);
    guest_.store_word(P::gdt + 0x28, 0x00CF'F300'0000'FFFF);
    guest_.store_word(P::gdt + 0x30, 0x00AF'FB00'0000'FFFF);
    guest_.store_word(P::tss + 4, P::stack + 0x2000);
    const std::uint64_t back = P::code + P::code_bytes - 16, back_without_code = back + 2, wait = back + 8;
    guest_.store_code(back, X86("iretq; add $8, %rsp; iretq; sti; hlt; iretq"));
    for (unsigned vector = 0; vector < 256; ++vector) {
      const bool has_code = vector == 8 || (vector >= 10 && vector <= 14) || vector == 17;
      const std::array<std::uint64_t, 8> handlers{back, back, back,    back,
                                                  back, wait, P::code, P::code + random_() % P::code_bytes};
      std::uint64_t to = handlers[random_() % handlers.size()];
      if (to == back && has_code) to = back_without_code;
      const std::uint64_t type = random_() % 64 == 0 ? 0x0E : 0x8E + random_() % 2;
      guest_.store_word(P::tables + 16 * vector,
                        (to & 0xFFFF) | 0x10ULL << 16 | type << 40 | (to >> 16 & 0xFFFF) << 48);
    }
    auto& special = guest_.backend.special;
    special.gdt = {.base = P::gdt, .limit = 0x37};
    special.idt = {.base = P::tables,
                   .limit = static_cast<std::uint16_t>(random_() % 32 == 0 ? random_() % 4096 : 0xFFF)};
    special.tr.base = P::tss;
    special.tr.limit = 0x67;
  }
  /// A DS area with room for a few records, sometimes for none, or with wrong bounds.
  void set_ds() {
    using P = RandomProgram;
    const auto near = [&] { return random_() % 8 == 0 ? random_() : P::buffer + random_() % 0x1000 / 192 * 192; };
    for (unsigned word = 0; word < 12; ++word)
      guest_.store_word(P::ds_area + 8 * word, word >= 8                            ? 0 - (1 + random_() % 500)
                                               : word % 4 < 2 && random_() % 4 != 0 ? P::buffer
                                                                                    : near());
  }

  std::mt19937_64 random_;
  FakeGuest guest_;
  Log log_{[](LogLevel, std::string_view) {}, LogLevel::error};
  std::optional<SoftBackend> backend_;
  std::unique_ptr<PmuVcpu> vcpu_;
};

}  // namespace vmm::test
