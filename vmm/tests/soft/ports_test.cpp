// IN, OUT, INS and OUTS, and who may use which port. SDM 1 18.5, 2A INS, 2B OUTS.
#include <algorithm>
#include <cstring>

#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

constexpr std::uint64_t map_at = 0x68, map_bytes = 0x40;
const std::vector<std::uint8_t> inb_70 = X86("in $0x70, %al"), inw_77 = X86("in $0x77, %ax"),
                                inl_76 = X86("in $0x76, %eax");

class Ports : public SystemInstructions {
 protected:
  Ports() {
    guest_.backend.special.tr.limit = map_at + map_bytes - 1;
    guest_.store_word(tss_at + 0x60, map_at << 48);
    guest_.store_code(tss_at + map_at, std::vector<std::uint8_t>(map_bytes, 0xFF));
  }
  void allow(std::initializer_list<unsigned> ports) {
    for (const unsigned port : ports) {
      const std::uint64_t at = tss_at + map_at + port / 8;
      guest_.store_code(at, {static_cast<std::uint8_t>(guest_.load(at, 1)[0] & ~(1U << port % 8))});
    }
  }
  /// The width of the read that the program's first instruction makes; 0 if it has #GP(0) instead.
  unsigned width_read(const std::vector<std::uint8_t>& code) {
    in_ring_3(code);
    SoftBackend& backend = begin();
    const auto exit = backend.run();
    if (!exit) return 99;
    if (const auto* const read = std::get_if<PortRead>(&*exit)) return read->width;
    expect_stopped_in_handler(backend, x86::vector::GP);
    EXPECT_EQ(pushed(5), 0U);
    EXPECT_EQ(pushed(4), user_at);
    return 0;
  }
  /// Lets a device answer until the guest halts. Returns what it was given, or the number of its answers.
  std::vector<std::uint32_t> serve(SoftBackend& backend, std::uint32_t first_answer = 0) {
    std::vector<std::uint32_t> seen;
    constexpr unsigned max = 16;
    while (seen.size() < max) {
      const auto exit = backend.run();
      if (!exit || std::holds_alternative<Hlt>(*exit)) return seen;
      std::uint32_t value = first_answer + static_cast<std::uint32_t>(seen.size());
      if (const auto* const write = std::get_if<PortWrite>(&*exit)) {
        value = 0;
        std::memcpy(&value, write->data.data(), write->data.size());
      } else if (const auto* const read = std::get_if<PortRead>(&*exit)) {
        std::memcpy(read->data.data(), &value, read->data.size());
      } else {
        ADD_FAILURE() << "exit " << exit->index();
        return seen;
      }
      seen.push_back(value);
    }
    return seen;
  }
  /// Runs code in ring 0 with RSI and RDI at `data`, RCX = 3 and DX = 80H.
  SoftBackend& begin_string(const std::vector<std::uint8_t>& code, std::uint64_t data = data_at) {
    guest_.store_code(code_at, code);
    kvm_regs& r = guest_.backend.registers;
    r.rsi = r.rdi = data;
    r.rcx = 3;
    r.rdx = 0x80;
    return begin();
  }
};

TEST_F(Ports, AProgramMayUseWhatTheMapAllows) {
  EXPECT_EQ(width_read(inb_70), 0U);
  allow({0x71});
  EXPECT_EQ(width_read(inb_70), 0U);
  allow({0x70});
  EXPECT_EQ(width_read(inb_70), 1U);
}
TEST_F(Ports, AllPortsOfAnAccessMustBeAllowedAcrossTheMapsBytes) {
  allow({0x77});
  EXPECT_EQ(width_read(inw_77), 0U);
  allow({0x78});
  EXPECT_EQ(width_read(inw_77), 2U);
  EXPECT_EQ(width_read(inl_76), 0U);
  allow({0x76, 0x79});
  EXPECT_EQ(width_read(inl_76), 4U);
}
// Two bytes are read, and the limit must hold both.
TEST_F(Ports, TheMapEndsWithTheTaskStateSegment) {
  allow({0x70});
  guest_.backend.special.tr.limit = map_at + 0x70 / 8 + 1;
  EXPECT_EQ(width_read(inb_70), 1U);
  --guest_.backend.special.tr.limit;
  EXPECT_EQ(width_read(inb_70), 0U);
  guest_.backend.special.tr.limit = 0x66;
  EXPECT_EQ(width_read(inb_70), 0U) << "the field with its base does not fit";
}
TEST_F(Ports, ATaskStateSegmentOf16BitsHasNoMap) {
  allow({0x70});
  guest_.backend.special.tr.type = 3;
  EXPECT_EQ(width_read(inb_70), 0U);
}
TEST_F(Ports, ThePrivilegeLevelComesBeforeTheMap) {
  guest_.backend.registers.rflags |= 3U << 12;
  EXPECT_EQ(width_read(inb_70), 1U);
}
// The map is read as the processor reads its tables: as the supervisor.
TEST_F(Ports, AMapThatIsNotMappedIsAPageFault) {
  constexpr std::uint64_t end = tables_at + 2 * vpmu::page_size;
  guest_.backend.special.tr.base = end - map_at;
  guest_.store_word(end - 8, map_at << 48);
  guest_.store_word(tables_at + 16ULL * x86::vector::PF,
                    guest_.load_word(tables_at + 16ULL * x86::vector::PF) | 1ULL << 32);  // IST1
  guest_.store_word(end - map_at + 36, stack_top);
  in_ring_3(inb_70);
  SoftBackend& backend = begin();
  finish(backend);
  expect_stopped_in_handler(backend, x86::vector::PF);
  EXPECT_EQ(pushed(5), 0U);
  EXPECT_EQ(backend.sregs()->cr2, end + 0x70 / 8);
}

TEST_F(Ports, OutsWritesElements) {
  guest_.store_word(data_at, 0x8877'6655'4433'2211);
  SoftBackend& bytes = begin_string(X86("rep outsb; hlt"));
  EXPECT_EQ(serve(bytes), (std::vector<std::uint32_t>{0x11, 0x22, 0x33}));
  EXPECT_EQ(bytes.regs()->rsi, data_at + 3);
  EXPECT_EQ(bytes.regs()->rcx, 0U);
  EXPECT_EQ(bytes.regs()->rip, code_at + 3);
  EXPECT_EQ(statistic(bytes, "soft.instructions"), 2U) << "it retires once";
  SoftBackend& word = begin_string(X86("outsw; hlt"));
  EXPECT_EQ(serve(word), (std::vector<std::uint32_t>{0x2211}));
  EXPECT_EQ(word.regs()->rcx, 3U);
  SoftBackend& none = begin_string(X86("xor %ecx, %ecx; rep outsl; hlt"));
  EXPECT_EQ(serve(none).size(), 0U);
  EXPECT_EQ(none.regs()->rsi, data_at);
}
TEST_F(Ports, InsReadsElementsInEitherDirection) {
  SoftBackend& up = begin_string(X86(".byte 0x66; rep insl; hlt"));
  EXPECT_EQ(serve(up, 0x0101).size(), 3U);
  EXPECT_EQ(guest_.load_word(data_at) & 0xFFFF'FFFF'FFFF, 0x0103'0102'0101U);
  EXPECT_EQ(up.regs()->rdi, data_at + 6);
  SoftBackend& down = begin_string(X86("std; rep insb; hlt"), data_at + 0x12);
  EXPECT_EQ(serve(down, 0x41).size(), 3U);
  EXPECT_EQ(guest_.load_word(data_at + 0x10) & 0xFF'FFFF, 0x41'4243U);
  EXPECT_EQ(down.regs()->rdi, data_at + 0xF);
}
// With 32-bit addresses the registers have 32 bits.
TEST_F(Ports, AddressesHaveTheirSize) {
  guest_.backend.registers.rbx = ~0ULL;
  SoftBackend& backend =
      begin_string(X86("shl $32, %rbx; or %rbx, %rcx; "
                       ".byte 0x67; rep insb; hlt"));  // by EDI and ECX
  EXPECT_EQ(serve(backend).size(), 3U);
  EXPECT_EQ(backend.regs()->rcx, 0U);
  EXPECT_EQ(backend.regs()->rdi, data_at + 3);
}
// A fault names the element, and what was done before is done.
TEST_F(Ports, AnElementMayFault) {
  constexpr std::uint64_t last = data_at + vpmu::page_size - 2;
  SoftBackend& backend = begin_string(X86("rep insb; hlt"), last);
  EXPECT_EQ(serve(backend).size(), 2U);
  expect_stopped_in_handler(backend, x86::vector::PF);
  EXPECT_EQ(pushed(4), code_at);
  EXPECT_EQ(backend.sregs()->cr2, data_at + vpmu::page_size);
  EXPECT_EQ(backend.regs()->rcx, 1U);
}
TEST_F(Ports, StringsObeyTheMap) {
  constexpr unsigned port_80 = 0x80;
  guest_.backend.registers.rdx = port_80;
  guest_.backend.registers.rdi = 0x1234'5000;  // not mapped: the privilege comes first
  EXPECT_EQ(width_read(X86("insb")), 0U);
  allow({port_80});
  guest_.backend.registers.rdi = user_at + 0x400;
  EXPECT_EQ(width_read(X86("insb")), 1U);
}
// SDM 3B 17.3.1.4: a single-stepping guest has a trap after each element.
TEST_F(Ports, AStepEndsAfterAnElement) {
  guest_.store_code(handler_of(1), X86("inc %ebx; iretq"));
  guest_.backend.registers.rflags |= vpmu::bit(8);
  SoftBackend& backend = begin_string(X86("rep outsb; int $0x1F"));
  EXPECT_EQ(serve(backend).size(), 3U);
  EXPECT_EQ(backend.regs()->rbx, 3U);
}

}  // namespace
}  // namespace vmm::test
