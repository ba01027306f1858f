#include "sources/trap_flag.hpp"

#include <array>

#include "processor/soft_state.hpp"
#include "vcpu/handlers.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned vector_mf = 16, vector_xm = 19;

}  // namespace

// No more than there may be debug registers for, the most likely first. SDM 3A table 6-1.
Stops handlers_of_faults(GuestView& view, const kvm_sregs& sregs, vpmu::GuestLinear at, Raises raises) {
  Stops stops;
  if (raises == Raises::nothing) return stops;
  const auto add = [&](unsigned vector) {
    if (const auto handler = handler_of(view, sregs, vector); handler != at) stops.add(handler);
  };
  if (raises == Raises::division) {
    add(vector_de);
  } else {
    add(vector_ud);
    add(raises == Raises::x87 ? vector_mf : vector_xm);
    add(vector_nm);
  }
  add(vector_gp);
  return stops;
}

// The frame is RIP, CS and RFLAGS, below them an error code for some vectors. SDM 3A figure 6-8.
void take_trap_flag_back(GuestView& view, const kvm_regs& at_handler, std::uint64_t rip) {
  constexpr std::uint64_t rflags_tf = vpmu::bit(8);
  std::array<std::uint64_t, 4> frame{};
  if (view.read(vpmu::GuestLinear{at_handler.rsp}, std::as_writable_bytes(std::span{frame}))) return;
  const unsigned first = frame[0] == rip ? 0 : 1;
  if (frame[first] != rip) return;
  const std::uint64_t flags = frame[first + 2] & ~rflags_tf;
  const vpmu::GuestLinear at{at_handler.rsp + (first + 2) * sizeof flags};
  // The processor has just written the frame. If it is gone nevertheless, the handler will not find it either.
  (void)view.write(at, std::as_bytes(std::span{&flags, 1}));
}

}  // namespace vmm
