// Instructions whose operand is a device's memory: what they load comes from the device, and what they store reaches
// it, as with operands in RAM.
#include <algorithm>
#include <array>
#include <cstring>

#include "devices/mmio.hpp"
#include "exec/tests/fixtures/assembled.hpp"
#include "soft/system_fixture.hpp"
#include "support/x86.hpp"

namespace vmm::test {
namespace {

/// A page that keeps what is written to it, outside of RAM.
class DevicePage final : public MmioDevices {
 public:
  static constexpr std::uint64_t physical = 0xFF00'0000;
  void mmio_read(vpmu::GuestPhysical at, std::span<std::byte> out) override {
    copy(at, out, [](auto& a, auto& b) { a = b; });
  }
  void mmio_write(vpmu::GuestPhysical at, std::span<const std::byte> in) override {
    std::array<std::byte, 8> value{};
    std::ranges::copy(in, value.begin());
    copy(at, std::span{value}.first(in.size()), [](auto& a, auto& b) { b = a; });
    ++writes;
  }
  [[nodiscard]] std::uint64_t word(std::size_t at) const {
    std::uint64_t value{};
    std::memcpy(&value, &bytes[at], sizeof value);
    return value;
  }
  void set_word(std::size_t at, std::uint64_t value) { std::memcpy(&bytes[at], &value, sizeof value); }

  std::array<std::byte, vpmu::page_size> bytes{};
  unsigned writes{};

 private:
  void copy(vpmu::GuestPhysical at, std::span<std::byte> out, auto move) {
    EXPECT_LE(out.size(), 8U) << "the widest access of a device";
    EXPECT_LE(physical, at.value());
    EXPECT_LE(at.value() + out.size(), physical + bytes.size());
    for (std::size_t i = 0; i < out.size(); ++i) move(out[i], bytes[at.value() - physical + i]);
  }
};

class DeviceMemory : public SystemInstructions {
 protected:
  static constexpr std::uint64_t window = 0xA0'0000;  ///< Twice the device's page, then a page of RAM.
  DeviceMemory() {
    guest_.map_to(window, DevicePage::physical);
    guest_.map_to(window + vpmu::page_size, DevicePage::physical);
    guest_.map(window + 2 * vpmu::page_size, vpmu::page_size);
    guest_.backend.registers.rcx = window;
    devices_ = &device_;
  }
  /// Until the vCPU halts, IN gives `answer`.
  SoftBackend& run_with_ports(const std::vector<std::uint8_t>& code, std::vector<std::uint8_t> answers) {
    guest_.store_code(code_at, code);
    SoftBackend& backend = begin();
    for (std::size_t n = 0;; ++n) {
      auto exit = backend.run();
      auto* const read = exit ? std::get_if<PortRead>(&*exit) : nullptr;
      auto* const write = exit ? std::get_if<PortWrite>(&*exit) : nullptr;
      if (read != nullptr) read->data[0] = std::byte{answers.at(n)};
      if (write != nullptr) written_.push_back(std::to_integer<std::uint8_t>(write->data[0]));
      if (read == nullptr && write == nullptr) return backend;
      EXPECT_TRUE(backend.complete_exit());
    }
  }
  DevicePage device_;
  std::vector<std::uint8_t> written_;
};

// SDM 2B SMSW, 2A STR, SGDT.
TEST_F(DeviceMemory, TakesWhatSystemInstructionsStore) {
  device_.set_word(0, ~0ULL);
  run(X86("smsw (%rcx); str 0x10(%rcx); sgdt 0x20(%rcx); mov %ds, 0x30(%rcx); hlt"));
  EXPECT_EQ(device_.word(0), 0xFFFF'FFFF'FFFF'0000 | (FakeGuest::cr0_paging & 0xFFFF));
  EXPECT_EQ(device_.word(0x10), 0x40U);
  EXPECT_EQ(device_.word(0x20), gdt_at << 16 | 0x3F);
  EXPECT_EQ(device_.word(0x28), 0U) << "the upper bytes of the base";
  EXPECT_EQ(device_.word(0x30), 0U);
}
// SDM 2A LGDT, LTR, CALL.
TEST_F(DeviceMemory, GivesWhatSystemInstructionsLoad) {
  device_.set_word(0, gdt_at << 16 | 0x2F);
  device_.set_word(0x10, 0x10ULL << 32 | (code_at + 0x100));
  guest_.store_code(code_at + 0x100, X86("hlt"));
  SoftBackend& backend = run(X86("lgdt (%rcx); ljmp *0x10(%rcx)"));
  EXPECT_EQ(backend.sregs()->gdt.limit, 0x2FU);
  EXPECT_EQ(backend.sregs()->gdt.base, gdt_at);
  EXPECT_EQ(backend.regs()->rip, code_at + 0x101);
}
// SDM 2A INS, 2B OUTS.
TEST_F(DeviceMemory, IsTheMemoryOfPortStrings) {
  device_.set_word(8, 0x2211);
  guest_.backend.registers.rdx = 0xE0;
  guest_.backend.registers.rcx = 2;
  guest_.backend.registers.rdi = window;
  guest_.backend.registers.rsi = window + 8;
  run_with_ports(X86("rep insb; mov $2, %ecx; rep outsb; hlt"), {0xAA, 0xBB});
  EXPECT_EQ(device_.word(0), 0xBBAAU);
  EXPECT_EQ(written_, (std::vector<std::uint8_t>{0x11, 0x22}));
}
TEST_F(DeviceMemory, IsReadAndWrittenByOneInstruction) {
  device_.set_word(0, 0x1234'0000'0000'5600);
  guest_.backend.registers.rax = 0x78;
  SoftBackend& backend = run(X86("or %rax, (%rcx); xchg %rax, 8(%rcx); incl 0x10(%rcx); hlt"));
  EXPECT_EQ(device_.word(0), 0x1234'0000'0000'5678U);
  EXPECT_EQ(device_.word(8), 0x78U);
  EXPECT_EQ(backend.regs()->rax, 0U);
  EXPECT_EQ(device_.word(0x10), 1U);
}
// SDM 2A BTC: the offset of the bit moves the address.
TEST_F(DeviceMemory, IsAStringOfBits) {
  device_.set_word(0x20, 0);
  guest_.backend.registers.rax = 66;
  guest_.backend.registers.rdx = ~0ULL;
  SoftBackend& backend = run(X86("btc %eax, 0x20(%rcx); btc %edx, 0x34(%rcx); bt %eax, 0x20(%rcx); hlt"));
  EXPECT_EQ(device_.word(0x20), 0U);
  EXPECT_EQ(device_.word(0x28), 4U);
  EXPECT_EQ(device_.word(0x30), 0x8000'0000U);
  EXPECT_EQ(device_.writes, 2U);
  EXPECT_NE(backend.regs()->rflags & 1U, 0U);
}
TEST_F(DeviceMemory, IsAccessedInPiecesOfEightBytes) {
  guest_.backend.special.cr4 |= vpmu::bit(9);  // OSFXSR
  device_.set_word(0, 0x1111'2222'3333'4444);
  device_.set_word(8, 0x5555'6666'7777'8888);
  run(X86("movups (%rcx), %xmm0; movups %xmm0, 0x20(%rcx); hlt"));
  EXPECT_EQ(device_.word(0x20), 0x1111'2222'3333'4444U);
  EXPECT_EQ(device_.word(0x28), 0x5555'6666'7777'8888U);
}
TEST_F(DeviceMemory, MayEndWithinAnAccess) {
  device_.set_word(0, 0x4433);
  device_.set_word(vpmu::page_size - 8, 0x2211'0000'0000'0000);
  guest_.backend.registers.rdx = window + vpmu::page_size;
  guest_.store_word(window + 2 * vpmu::page_size, 0x6655);
  SoftBackend& backend =
      run(X86("mov -2(%rdx), %eax; "
              "movl $0xDDCCBBAA, -2(%rdx); "
              "mov 0xFFE(%rdx), %ebx; "  // its end is in RAM
              "movl $0x40302010, 0xFFE(%rdx); hlt"));
  EXPECT_EQ(backend.regs()->rax, 0x4433'2211U);
  EXPECT_EQ(backend.regs()->rbx, 0x6655'BBAAU);
  EXPECT_EQ(device_.word(0), 0xDDCCU);
  EXPECT_EQ(device_.word(vpmu::page_size - 8), 0x2010'0000'0000'0000U);
  EXPECT_EQ(guest_.load_word(window + 2 * vpmu::page_size), 0x4030U);
}
// SDM 2B MOVS, STOS, REP.
TEST_F(DeviceMemory, IsReachedByEachIterationOfAString) {
  guest_.store_word(data_at, 0x8877'6655'4433'2211);
  guest_.backend.registers.rsi = data_at;
  guest_.backend.registers.rdi = window;
  guest_.backend.registers.rcx = 5;
  run(X86("rep movsb; mov $0x99, %al; mov $2, %ecx; rep stosb; hlt"));
  EXPECT_EQ(device_.word(0), 0x99'9955'4433'2211U);
  EXPECT_EQ(device_.writes, 7U);
}

// SDM 2A ENTER: the frame may be half in RAM and end in the device.
TEST_F(DeviceMemory, IsAStack) {
  guest_.backend.registers.rsp = window + 2 * vpmu::page_size + 4;
  guest_.backend.registers.rbp = 0x1122'3344'5566'7788;
  SoftBackend& backend = run(X86("enter $0x800, $0; hlt"));
  EXPECT_EQ(backend.regs()->rip, code_at + 5);
  EXPECT_EQ(backend.regs()->rbp, window + 2 * vpmu::page_size - 4);
  EXPECT_EQ(backend.regs()->rsp, window + 2 * vpmu::page_size - 4 - 0x800);
  EXPECT_EQ(device_.word(vpmu::page_size - 8) >> 32, 0x5566'7788U);
  EXPECT_EQ(guest_.load_word(window + 2 * vpmu::page_size) & 0xFFFF'FFFF, 0x1122'3344U);
}
// SDM 2A CMPS: both operands.
TEST_F(DeviceMemory, IsComparedWithItself) {
  device_.set_word(0, 0x4433'2211);
  device_.set_word(0x20, 0x5533'2211);
  guest_.backend.registers.rsi = window;
  guest_.backend.registers.rdi = window + vpmu::page_size + 0x20;
  guest_.backend.registers.rcx = 8;
  SoftBackend& backend = run(X86("repe cmpsb; hlt"));
  EXPECT_EQ(backend.regs()->rcx, 4U);
  EXPECT_EQ(backend.regs()->rsi, window + 4);
  EXPECT_EQ(backend.regs()->rflags & x86::rflags::ZF::mask, 0U);
}

}  // namespace
}  // namespace vmm::test
