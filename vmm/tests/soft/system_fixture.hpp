#pragma once
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "soft/soft_backend.hpp"
#include "support/log.hpp"

namespace vmm::test {

inline constexpr std::uint64_t code_at = 0x40'0000, stack_top = 0x50'1000, tables_at = 0x60'0000, gdt_at = 0x60'1000,
                               tss_at = 0x60'1100, user_at = 0x80'0000, data_at = 0x90'0000;

/// The handler of a vector: a HLT at an address of its own, so that a test sees which vector was delivered.
constexpr std::uint64_t handler_of(unsigned vector) { return code_at + 0x800 + vector * 16; }

/// A kernel and a program, each of a few instructions, on a vCPU without KVM.
class SystemInstructions : public testing::Test {
 protected:
  SystemInstructions() {
    guest_.map(code_at, vpmu::page_size);
    guest_.map(stack_top - vpmu::page_size, vpmu::page_size);
    guest_.map(tables_at, 2 * vpmu::page_size);
    guest_.map(user_at, vpmu::page_size, {.is_user = true});
    guest_.map(data_at, vpmu::page_size);
    guest_.store_word(gdt_at + 0x10, 0x00AF'9B00'0000'FFFF);
    guest_.store_word(gdt_at + 0x18, 0x00CF'9300'0000'FFFF);
    guest_.store_word(gdt_at + 0x28, 0x00CF'F300'0000'FFFF);
    guest_.store_word(gdt_at + 0x30, 0x00AF'FB00'0000'FFFF);
    guest_.store_word(gdt_at + 0x38, 0x0040'F300'0000'0123);  // a limit of its own
    guest_.store_word(tss_at + 4, stack_top);
    guest_.store_word(tss_at + 0x60, 0x68ULL << 48);  // no map of I/O ports
    for (unsigned vector = 0; vector < 32; ++vector) {
      const std::uint64_t to = handler_of(vector);
      guest_.store_word(tables_at + 16 * vector,
                        (to & 0xFFFF) | 0x10ULL << 16 | 0xEEULL << 40 | (to >> 16 & 0xFFFF) << 48);
      guest_.store_code(to, X86("hlt"));
    }
    auto& sregs = guest_.backend.special;
    sregs.gdt = {.base = gdt_at, .limit = 0x3F};
    sregs.idt = {.base = tables_at, .limit = 0x1FF};
    sregs.tr = {.base = tss_at, .limit = 0x67, .selector = 0x40, .type = 0xB, .present = 1};
    sregs.apic_base = 0xFEE0'0900;
    guest_.backend.registers.rip = code_at;
    guest_.backend.registers.rsp = stack_top;
  }
  void in_ring_3(const std::vector<std::uint8_t>& code) {
    guest_.enter_ring(3);
    guest_.store_code(user_at, code);
    guest_.backend.registers.rip = user_at;
    guest_.backend.registers.rsp = user_at + 0x800;
  }
  SoftBackend& begin() {
    return backend_.emplace(
        guest_.memory, cpuid_,
        SoftStart{
            .sregs = guest_.backend.special, .regs = guest_.backend.registers, .log = &log_, .devices = devices_});
  }
  /// Runs code in ring 0 to its HLT.
  SoftBackend& run(const std::vector<std::uint8_t>& code) {
    guest_.store_code(code_at, code);
    SoftBackend& backend = begin();
    finish(backend);
    return backend;
  }
  void finish(SoftBackend& backend) {
    const auto exit = backend.run();
    ASSERT_TRUE(exit);
    ASSERT_TRUE(std::holds_alternative<Hlt>(*exit)) << "exit " << exit->index();
  }
  void expect_stopped_in_handler(SoftBackend& backend, unsigned vector) {
    EXPECT_EQ(backend.regs()->rip, handler_of(vector) + 1);
  }
  std::uint64_t pushed(unsigned n) { return guest_.load_word(stack_top - 8ULL * (n + 1)); }

  static constexpr std::uint64_t as_before = 1, remapped = 2;
  /// The kernel reads at `data_at`, which RSI has, maps another page there, runs `invalidate`, and reads again: what it
  /// reads then. It changes RBX, RCX, RDX and RDI.
  std::uint64_t seen_after_remapping(const std::vector<std::uint8_t>& invalidate) {
    constexpr std::uint64_t other = data_at + vpmu::page_size;
    constexpr std::uint64_t table = 0xA0'0000, entry = table + (data_at >> 12 & 0x1FF) * 8;
    const auto next = [this](std::uint64_t at, unsigned shift) {
      return guest_.ram.read_word(vpmu::GuestPhysical{at + (data_at >> shift & 0x1FF) * 8}, 8).value() & ~0xFFFULL;
    };
    guest_.map(data_at, vpmu::page_size);
    guest_.map(other, vpmu::page_size);
    guest_.map_to(table, next(next(next(guest_.backend.special.cr3, 39), 30), 21));
    guest_.store_word(data_at, as_before);
    guest_.store_word(other, remapped);
    std::vector<std::uint8_t> code = X86("mov (%rsi), %rbx; mov %rcx, (%rdi)");
    code.insert(code.end(), invalidate.begin(), invalidate.end());
    for (const unsigned byte : X86("mov (%rsi), %rdx; hlt")) code.push_back(static_cast<std::uint8_t>(byte));
    guest_.backend.registers.rsi = data_at;
    guest_.backend.registers.rdi = entry;
    guest_.backend.registers.rcx = guest_.entry(other);
    const kvm_regs end = *run(code).regs();
    EXPECT_EQ(end.rbx, as_before);
    return end.rdx;
  }

  std::uint64_t statistic(SoftBackend& backend, std::string_view wanted) {
    std::uint64_t found = 0;
    backend.visit_statistics([&](std::string_view name, std::uint64_t value) { found += name == wanted ? value : 0; });
    return found;
  }

  FakeGuest guest_;
  CpuidTable cpuid_;
  MmioDevices* devices_{};  ///< What begin() gives the vCPU where there is no RAM.
  std::vector<std::string> lines_;
  Log log_{[this](LogLevel, std::string_view line) { lines_.emplace_back(line); }};
  std::optional<SoftBackend> backend_;
};

}  // namespace vmm::test
