#include "machine/probe_guest.hpp"

#include <array>

#include "boot/cpu_tables.hpp"
#include "boot/layout.hpp"
#include "support/x86.hpp"

namespace vmm {
namespace {

constexpr vpmu::GuestPhysical idt{0x202000};

/// A 64-bit interrupt gate of ring 0. SDM 3A 6.14.1.
std::array<std::uint64_t, 2> interrupt_gate(std::uint64_t handler) {
  constexpr std::uint64_t code_selector = 0x10;
  constexpr std::uint64_t present_interrupt_gate = 0x8E00;
  return {(handler & 0xFFFF) | code_selector << 16U | present_interrupt_gate << 32U | (handler >> 16U & 0xFFFF) << 48U,
          handler >> 32U};
}

// out %al, $port; hlt
constexpr std::array<std::uint8_t, 3> report(std::uint8_t port) { return {0xE6, port, 0xF4}; }

/// dec %rcx; jnz .-5; out %al, $done_port
constexpr std::array<std::uint8_t, 7> counted_loop{0x48, 0xFF, 0xC9, 0x75, 0xFB, 0xE6, ProbeGuest::done_port};
/// rdpmc; out %al, $done_port
constexpr std::array<std::uint8_t, 4> one_rdpmc{0x0F, 0x33, 0xE6, ProbeGuest::done_port};

/// The loop above, in this process.
std::chrono::nanoseconds time_on_host(std::uint64_t count) {
  const auto start = std::chrono::steady_clock::now();
  __asm__ volatile("1: dec %0\n jnz 1b" : "+r"(count) : : "cc");
  return std::chrono::steady_clock::now() - start;
}

double per_second(std::uint64_t instructions, std::chrono::nanoseconds took) {
  return static_cast<double>(instructions) / std::chrono::duration<double>(took).count();
}

}  // namespace

Result<ProbeGuest> ProbeGuest::create(const System& system) {
  VMM_ASSIGN(auto memory, GuestMemory::create(GuestMemory::min_bytes));
  VMM_ASSIGN(auto vm, system.create_vm());
  VMM_TRY(vm.set_reserved_pages(layout::kvm_reserved));
  if ((vm.check(KVM_CAP_PMU_CAPABILITY) & KVM_PMU_CAP_DISABLE) != 0) {
    VMM_TRY(vm.enable(KVM_CAP_PMU_CAPABILITY, {KVM_PMU_CAP_DISABLE}));
  }
  VMM_TRY(memory.attach(vm));
  VMM_ASSIGN(auto vcpu, vm.create_vcpu(0));
  VMM_ASSIGN(const auto cpuid, system.supported_cpuid());
  VMM_TRY(vcpu.set_cpuid(cpuid));

  const auto handler = report(fault_port);
  const auto gate = interrupt_gate(fault_handler.value());
  const bool written = write_cpu_tables(memory) && memory.write(fault_handler, std::as_bytes(std::span{handler})) &&
                       memory.write(idt + x86::vector::GP * sizeof gate, std::as_bytes(std::span{gate}));
  if (!written) {
    return host_error("the probe guest does not fit into its memory");
  }
  return ProbeGuest{std::move(memory), std::move(vm), std::move(vcpu)};
}

Result<void> ProbeGuest::load(std::span<const std::uint8_t> instructions, std::uint64_t rcx) {
  if (!memory_.write(code, std::as_bytes(instructions))) {
    return host_error("the probe guest does not fit into its memory");
  }
  VMM_TRY(enter_at(vcpu_, {.rip = code, .rsp = layout::stack_top.value()}));
  VMM_ASSIGN(auto sregs, vcpu_.sregs());
  sregs.idt = {.base = idt.value(), .limit = vpmu::page_size - 1};
  VMM_TRY(vcpu_.set_sregs(sregs));
  VMM_ASSIGN(auto regs, vcpu_.regs());
  regs.rcx = rcx;
  VMM_TRY(vcpu_.set_regs(regs));
  return vcpu_.flush();
}

Result<void> ProbeGuest::break_at(vpmu::GuestPhysical at) {
  // DR7: breakpoint 0 global, execution. SDM 3B 17.2.4.
  kvm_guest_debug debug{};
  debug.control = KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_USE_HW_BP;
  debug.arch.debugreg[0] = at.value();
  debug.arch.debugreg[7] = x86::dr7::fixed | x86::dr7::G0::mask;
  return vcpu_.set_guest_debug(debug);
}

Result<ProbeGuest::Outcome> ProbeGuest::run() {
  constexpr int max_interruptions = 10;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < max_interruptions; ++i) {
    VMM_ASSIGN(const auto exit, vcpu_.run());
    const auto took = std::chrono::steady_clock::now() - start;
    if (const auto* out = std::get_if<PortWrite>(&exit)) {
      const auto end = out->port == done_port ? End::done : out->port == fault_port ? End::faulted : End::other;
      return Outcome{end, took};
    }
    if (std::holds_alternative<Debug>(exit)) {
      return Outcome{End::broke, took};
    }
    if (!std::holds_alternative<Interrupted>(exit)) {
      return Outcome{End::other, took};
    }
  }
  return Outcome{End::other, std::chrono::steady_clock::now() - start};
}

Result<RdpmcBehaviour> probe_rdpmc(const System& system) {
  const auto run_once = [&system](bool with_breakpoint) -> Result<ProbeGuest::End> {
    VMM_ASSIGN(auto guest, ProbeGuest::create(system));
    VMM_TRY(guest.load(one_rdpmc, 0));
    if (with_breakpoint) {
      VMM_TRY(guest.break_at(ProbeGuest::fault_handler));
    }
    VMM_ASSIGN(const auto outcome, guest.run());
    return outcome.end;
  };
  VMM_ASSIGN(const auto plain, run_once(false));
  if (plain == ProbeGuest::End::done) {
    return RdpmcBehaviour::silent;
  }
  if (plain != ProbeGuest::End::faulted) {
    return host_error("the RDPMC probe guest neither finished nor faulted");
  }
  VMM_ASSIGN(const auto caught, run_once(true));
  return caught == ProbeGuest::End::broke ? RdpmcBehaviour::trappable : RdpmcBehaviour::breakpoint_dead;
}

Result<void> require_rdpmc(RdpmcBehaviour behaviour) {
  switch (behaviour) {
    case RdpmcBehaviour::trappable: return {};
    case RdpmcBehaviour::breakpoint_dead:
      return host_error(
          "guests cannot read counters on this KVM: RDPMC faults, but a breakpoint on the handler of #GP "
          "never fires",
          0, "see `vpmu doctor`; run guests without KVM (--accel soft), or on another host");
    case RdpmcBehaviour::silent: break;
  }
  return host_error(
      "this KVM answers RDPMC by itself, and guests would read wrong counts", 0,
      "use Linux 6.9 or later on an AMD host and 5.18 or later on an Intel one, or run guests without KVM "
      "(--accel soft)");
}

Result<SpeedComparison> compare_speed(const System& system) {
  // Short loops first determine how long the real one may be: an emulating KVM is a thousand times slower.
  constexpr std::uint64_t first_loop = 1'000, shorter_loop = 4'000, short_loop = 20'000;
  constexpr std::uint64_t long_loop = 10'000'000;
  constexpr std::uint64_t instructions_per_round = 2;
  VMM_ASSIGN(auto guest, ProbeGuest::create(system));
  std::uint64_t count = first_loop;
  // What a new guest's first instructions cost the host is not the CPU's speed.
  VMM_TRY(guest.load(counted_loop, count));
  VMM_ASSIGN(ProbeGuest::Outcome outcome, guest.run());
  for (const std::uint64_t next : {shorter_loop, short_loop, long_loop}) {
    count = next;
    VMM_TRY(guest.load(counted_loop, count));
    VMM_ASSIGN(outcome, guest.run());
    if (outcome.end != ProbeGuest::End::done) {
      return host_error("the speed probe guest did not finish its loop");
    }
    if (outcome.took > std::chrono::milliseconds{5}) {
      break;
    }
  }
  return SpeedComparison{.guest = per_second(count * instructions_per_round, outcome.took),
                         .host = per_second(long_loop * instructions_per_round, time_on_host(long_loop))};
}

}  // namespace vmm
