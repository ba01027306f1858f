#include "vcpu/breakpoints.hpp"

#include <algorithm>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr unsigned dr_count = 4;
constexpr std::uint64_t dr7_fixed = 0x400;
constexpr std::uint64_t dr6_fixed = 0xFFFF'0FF0;
constexpr std::uint64_t dr6_bs = vpmu::bit(14);
constexpr std::uint64_t dr6_matches = 0xF;
constexpr std::uint64_t rflags_tf = vpmu::bit(8);
/// DR7: local and global enable of breakpoint i. SDM 3B 17.2.4.
constexpr std::uint64_t enable_bits(unsigned i) { return 3ULL << (2 * i); }
constexpr std::uint64_t condition_bits(unsigned i) { return 0xFULL << (16 + 4 * i); }
/// R/W of breakpoint i; 0 is execution.
constexpr std::uint64_t access_bits(unsigned i) { return 3ULL << (16 + 4 * i); }

}  // namespace

// Takes a free register; when there is none, the guest's last one gives way: a guest kernel that faults on RDPMC is
// worse.
void Breakpoints::place(kvm_guest_debug& debug, vpmu::GuestLinear at, std::array<Holder, 4>& holders) {
  const auto free = std::ranges::find(holders, Holder::nobody);
  const auto last = std::ranges::find(holders.rbegin(), holders.rend(), Holder::guest);
  if (free == holders.end()) ++displaced_;
  const auto slot = static_cast<unsigned>((free != holders.end() ? free : last.base() - 1) - holders.begin());
  holders[slot] = Holder::us;
  debug.arch.debugreg[slot] = at.value();
  debug.arch.debugreg[7] &= ~condition_bits(slot);  // execution, one byte
  debug.arch.debugreg[7] |= vpmu::bit(2 * slot + 1);
}

Result<void> Breakpoints::apply() {
  const Wanted wanted{.gate = gate_, .walk = walk_, .step = step_};
  // While ours stand in the debug registers, KVM keeps what the guest writes to them to itself: look for it at each
  // entry.
  if (gate_ || walk_) {
    VMM_ASSIGN(const kvm_debugregs now, port_->debugregs());
    const bool same = now.dr7 == guest_.dr7 && std::ranges::equal(now.db, guest_.db);
    if (wanted == applied_ && !unarmed_ && same) return {};
    guest_ = now;
  } else if (wanted == applied_ && !unarmed_) {
    return {};
  }
  kvm_guest_debug debug{};
  if (gate_ || walk_ || step_) {
    debug.control = KVM_GUESTDBG_ENABLE;
    if (step_) debug.control |= KVM_GUESTDBG_SINGLESTEP;
    if (step_ || walk_) debug.control |= KVM_GUESTDBG_BLOCKIRQ;
  }
  if (gate_ || walk_) {
    debug.control |= KVM_GUESTDBG_USE_HW_BP;
    debug.arch.debugreg[7] = guest_.dr7 | dr7_fixed;
    std::array<Holder, dr_count> holders{};
    for (unsigned i = 0; i < dr_count; ++i) {
      debug.arch.debugreg[i] = guest_.db[i];
      holders[i] = (guest_.dr7 & enable_bits(i)) != 0 ? Holder::guest : Holder::nobody;
    }
    if (gate_) place(debug, *gate_, holders);
    if (walk_) place(debug, *walk_, holders);
  }
  VMM_TRY(port_->set_guest_debug(debug));
  unarmed_ = false;
  applied_ = wanted;
  return {};
}

kvm_guest_debug Breakpoints::beside_gate(const kvm_guest_debug& others) {
  given_others();
  kvm_guest_debug debug = others;
  if (!gate_) return debug;
  std::array<Holder, dr_count> holders{};
  if ((debug.control & KVM_GUESTDBG_USE_HW_BP) == 0) {
    std::ranges::fill(debug.arch.debugreg, 0);
    debug.arch.debugreg[7] = dr7_fixed;
  }
  for (unsigned i = 0; i < dr_count; ++i)
    if ((debug.arch.debugreg[7] & enable_bits(i)) != 0) holders[i] = Holder::guest;
  debug.control |= KVM_GUESTDBG_USE_HW_BP;
  place(debug, *gate_, holders);
  return debug;
}

Breakpoints::Hit Breakpoints::classify(const Debug& exit, std::uint64_t rflags) const {
  if (exit.exception != 1) return Hit::guest;
  const vpmu::GuestLinear pc{exit.pc};
  const bool at_ours = pc == applied_.gate || pc == applied_.walk;
  const bool stepped = applied_.step && (exit.dr6 & dr6_bs) != 0;
  if (at_ours || stepped) return Hit::ours;
  const bool only_a_step = (exit.dr6 & (dr6_bs | dr6_matches)) == dr6_bs;
  return only_a_step && (rflags & rflags_tf) == 0 ? Hit::kvm : Hit::guest;
}

// A data breakpoint is reported behind the instruction, together with the step. SDM 3B 17.2.3: DR6 also names
// breakpoints that match without being enabled.
Result<std::optional<Debug>> Breakpoints::guests_part(const Debug& step) {
  if ((step.dr6 & dr6_matches) == 0) return std::optional<Debug>{};
  VMM_ASSIGN(const kvm_debugregs guest, port_->debugregs());
  std::uint64_t hit = 0;
  for (unsigned i = 0; i < dr_count; ++i)
    if ((guest.dr7 & enable_bits(i)) != 0 && (guest.dr7 & access_bits(i)) != 0) hit |= step.dr6 & vpmu::bit(i);
  if (hit == 0) return std::optional<Debug>{};
  Debug out = step;
  out.dr6 = dr6_fixed | hit;
  return std::optional{out};
}

std::uint64_t Breakpoints::guests_at(vpmu::GuestLinear at) const {
  std::uint64_t hit = 0;
  for (unsigned i = 0; i < dr_count; ++i)
    if ((guest_.dr7 & enable_bits(i)) != 0 && (guest_.dr7 & access_bits(i)) == 0 && guest_.db[i] == at.value())
      hit |= vpmu::bit(i);
  return hit;
}

Result<void> Breakpoints::inject(const Debug& exit) {
  VMM_ASSIGN(kvm_debugregs regs, port_->debugregs());
  regs.dr6 = exit.dr6 | dr6_fixed;
  VMM_TRY(port_->set_debugregs(regs));
  VMM_ASSIGN(kvm_vcpu_events events, port_->events());
  events.exception.injected = 1;
  events.exception.nr = 1;
  events.exception.has_error_code = 0;
  return port_->set_events(events);
}

}  // namespace vmm
