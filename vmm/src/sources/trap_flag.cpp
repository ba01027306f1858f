#include "sources/trap_flag.hpp"

#include <array>

#include "processor/soft_state.hpp"
#include "support/x86.hpp"
#include "vcpu/handlers.hpp"

namespace vmm {
// No more than there may be debug registers for, the most likely first. SDM 3A table 6-1.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at, Raises raises) {
  Stops stops;
  if (raises == Raises::nothing) return stops;
  const auto add = [&](unsigned vector) {
    if (const auto handler = handler_of(view, sregs, vector); handler != at) stops.add(handler);
  };
  if (raises == Raises::division) {
    add(x86::vector::DE);
  } else {
    add(x86::vector::UD);
    add(raises == Raises::x87 ? x86::vector::MF : x86::vector::XM);
    add(x86::vector::NM);
  }
  add(x86::vector::GP);
  return stops;
}

// The frame is RIP, CS and RFLAGS, below them an error code for some vectors. SDM 3A figure 6-8.
void take_trap_flag_back(GuestView& view, const kvm_regs& at_handler, std::uint64_t rip) {
  std::array<std::uint64_t, 4> frame{};
  if (view.read(vpmu::GuestLinear{at_handler.rsp}, std::as_writable_bytes(std::span{frame}))) return;
  const unsigned first = frame[0] == rip ? 0 : 1;
  if (frame[first] != rip) return;
  const std::uint64_t flags = frame[first + 2] & ~x86::rflags::TF::mask;
  const vpmu::GuestLinear at{at_handler.rsp + (first + 2) * sizeof flags};
  // The processor has just written the frame. If it is gone nevertheless, the handler will not find it either.
  (void)view.write(at, std::as_bytes(std::span{&flags, 1}));
}

}  // namespace vmm
