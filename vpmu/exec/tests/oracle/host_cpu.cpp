#include "exec/tests/oracle/host_cpu.hpp"

#include <vector>

namespace vpmu::exec::test {
namespace {

constexpr std::size_t code_bytes = page_size;

/// What the code reads and writes, on the page behind it.
struct Frame {
  Registers before;
  Registers after;
  std::uint64_t host_stack;
};

class Assembler {
 public:
  Assembler(std::uint64_t code, std::uint64_t frame) : code_{code}, frame_{frame} {}
  void bytes(std::initializer_list<unsigned> list) {
    for (const unsigned b : list) out.push_back(static_cast<std::byte>(b));
  }
  /// An instruction with the RIP-relative operand `field` of the frame: its bytes without the displacement.
  void with_field(std::initializer_list<unsigned> opcode, std::size_t field) {
    bytes(opcode);
    const auto disp = static_cast<std::int32_t>(static_cast<std::int64_t>(frame_ + field) - static_cast<std::int64_t>(code_ + out.size() + 4));
    const auto* const raw = reinterpret_cast<const std::byte*>(&disp);
    out.insert(out.end(), raw, raw + 4);
  }
  /// MOV between register `n` and a field: 8B loads, 89 stores.
  void mov(unsigned opcode, unsigned n, std::size_t field) { with_field({n < 8 ? 0x48U : 0x4CU, opcode, (n % 8) << 3U | 5U}, field); }
  std::vector<std::byte> out;

 private:
  std::uint64_t code_, frame_;
};

constexpr std::size_t in_gpr(unsigned n) { return offsetof(Frame, before) + offsetof(Registers, gpr) + 8 * n; }
constexpr std::size_t out_gpr(unsigned n) { return offsetof(Frame, after) + offsetof(Registers, gpr) + 8 * n; }
constexpr std::size_t in_flags = offsetof(Frame, before) + offsetof(Registers, flags);
constexpr std::size_t out_flags = offsetof(Frame, after) + offsetof(Registers, flags);
constexpr unsigned load = 0x8B, store = 0x89, stack_register = 4;

}  // namespace

HostCpu::HostCpu() : memory_{2 * code_bytes, PROT_READ | PROT_WRITE | PROT_EXEC} {}

Registers HostCpu::run(std::span<const std::byte> instruction, const Registers& before) {
  auto* const frame = reinterpret_cast<Frame*>(memory_.bytes().data() + code_bytes);
  Assembler a{memory_.address(), memory_.address() + code_bytes};
  a.bytes({0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57});  // push rbx, rbp, r12 to r15
  a.mov(store, stack_register, offsetof(Frame, host_stack));
  a.with_field({0xFF, 0x35}, in_flags);  // push
  a.bytes({0x9D});                       // popfq
  for (unsigned n = 0; n < 16; ++n) a.mov(load, n, in_gpr(n));
  rip_ = memory_.address() + a.out.size();
  a.out.insert(a.out.end(), instruction.begin(), instruction.end());
  for (unsigned n = 0; n < 16; ++n) a.mov(store, n, out_gpr(n));
  a.mov(load, stack_register, offsetof(Frame, host_stack));
  a.bytes({0x9C});                        // pushfq
  a.with_field({0x8F, 0x05}, out_flags);  // pop
  a.bytes({0xFC, 0x41, 0x5F, 0x41, 0x5E, 0x41, 0x5D, 0x41, 0x5C, 0x5D, 0x5B, 0xC3});  // cld; pop them; ret
  std::memcpy(memory_.bytes().data(), a.out.data(), a.out.size());
  frame->before = before;
  reinterpret_cast<void (*)()>(memory_.bytes().data())();
  return frame->after;
}

}  // namespace vpmu::exec::test
