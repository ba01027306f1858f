#include "sources/trap_flag.hpp"

#include <algorithm>
#include <array>

#include "decode/system_instruction.hpp"
#include "processor/soft_state.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned vector_mf = 16, vector_xm = 19;

/// The first byte of the opcode, behind prefixes. SDM 2A 2.1.1, 2.2.1.
unsigned opcode_of(std::span<const std::byte> code) {
  constexpr std::array prefixes{0x66U, 0x67U, 0xF2U, 0xF3U, 0x2EU, 0x36U, 0x3EU, 0x26U, 0x64U, 0x65U};
  for (const std::byte b : code) {
    const auto value = std::to_integer<unsigned>(b);
    if ((value & 0xF0) != 0x40 && std::ranges::find(prefixes, value) == prefixes.end()) return value;
  }
  return 0;
}

bool is_x87(unsigned opcode) { return opcode == 0x9B || (opcode & 0xF8) == 0xD8; }

/// Whether it only computes, moves or branches in ways that every processor has: with its operands there it raises
/// nothing.
bool is_plain(unsigned opcode) {
  constexpr std::array others{0x0FU, 0x62U, 0x8EU, 0xC4U, 0xC5U, 0xF0U, 0xF6U, 0xF7U};
  return !is_x87(opcode) && std::ranges::find(others, opcode) == others.end();
}

}  // namespace

// As many as there may be registers for, the likely ones first. SDM 3A table 6-1.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at,
                         std::span<const std::byte> code) {
  Stops stops;
  const unsigned opcode = opcode_of(code);
  if (is_plain(opcode)) return stops;
  const auto add = [&](unsigned vector) {
    if (const auto handler = handler_of(view, sregs, vector); handler != at) stops.add(handler);
  };
  if (is_division(code)) {
    add(vector_de);
  } else {
    add(vector_ud);
    add(is_x87(opcode) ? vector_mf : vector_xm);
    add(vector_nm);
  }
  add(vector_gp);
  return stops;
}

// RIP, CS and RFLAGS, behind an error code with some vectors. SDM 3A figure 6-8.
void take_trap_flag_back(GuestView& view, const kvm_regs& at_handler, std::uint64_t rip) {
  constexpr std::uint64_t rflags_tf = vpmu::bit(8);
  std::array<std::uint64_t, 4> frame{};
  if (view.read(vpmu::GuestLinear{at_handler.rsp}, std::as_writable_bytes(std::span{frame}))) return;
  const unsigned first = frame[0] == rip ? 0 : 1;
  if (frame[first] != rip) return;
  const std::uint64_t flags = frame[first + 2] & ~rflags_tf;
  const vpmu::GuestLinear at{at_handler.rsp + (first + 2) * sizeof flags};
  // It has just been written by the processor; if it is gone all the same, the handler does not find it either.
  (void)view.write(at, std::as_bytes(std::span{&flags, 1}));
}

}  // namespace vmm
