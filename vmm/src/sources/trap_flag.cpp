#include "sources/trap_flag.hpp"

#include <array>

#include "soft/soft_state.hpp"
#include "soft/system_instruction.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned vector_nm = 7, vector_mf = 16, vector_xm = 19;

/// Whether the opcode is one of the x87's: D8 to DF.
bool is_x87(std::span<const std::byte> code) {
  for (const std::byte b : code) {
    const auto value = std::to_integer<unsigned>(b);
    const bool prefix = value == 0x66 || value == 0x67 || value == 0x64 || value == 0x65 || (value & 0xF0) == 0x40;
    if (!prefix) return value == 0x9B || (value & 0xF8) == 0xD8;
  }
  return false;
}

}  // namespace

// As many as there may be registers for, the likely ones first. SDM 3A table 6-1.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at,
                         std::span<const std::byte> code) {
  Stops stops;
  const auto add = [&](unsigned vector) {
    if (const auto handler = handler_of(view, sregs, vector); handler != at) stops.add(handler);
  };
  if (is_division(code)) {
    add(vector_de);
  } else {
    add(vector_ud);
    add(is_x87(code) ? vector_mf : vector_xm);
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
