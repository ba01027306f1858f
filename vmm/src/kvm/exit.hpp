#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>

#include "vpmu/address.hpp"

namespace vmm {

/// Why a guest access to an MSR came to us. Values of KVM_MSR_EXIT_REASON_*.
enum class MsrReason : std::uint32_t { invalid = 1, unknown = 2, filter = 4 };

/// Where the answer to an MSR access goes: inside kvm_run on KVM, a local in tests.
/// KVM leaves `gp` at 0; a handler sets it to 1 to raise #GP(0) in the guest.
struct MsrReply {
  unsigned long long& data;  ///< RDMSR: the value the guest gets. The kernel's 64-bit type.
  std::uint8_t& gp;
};

/// RDMSR that the filter or KVM handed over. The instruction retires on the next KVM_RUN.
struct MsrRead {
  std::uint32_t index;
  MsrReason reason;
  MsrReply reply;
};

/// WRMSR that the filter or KVM handed over. The instruction retires on the next KVM_RUN.
struct MsrWrite {
  std::uint32_t index;
  std::uint64_t value;
  MsrReason reason;
  MsrReply reply;
};

/// RDPMC, on a back end where it causes an exit (VcpuBackend::exits_on_rdpmc); on KVM it does not.
struct CounterRead {
  std::uint32_t ecx;
  MsrReply reply;
};

/// IN or INS: fill `data`, which holds `data.size() / width` items of `width` bytes.
struct PortRead {
  std::uint16_t port;
  std::uint8_t width;
  std::span<std::byte> data;
};

/// OUT or OUTS.
struct PortWrite {
  std::uint16_t port;
  std::uint8_t width;
  std::span<const std::byte> data;
};

/// A load from where there is no RAM: fill `data` (1 to 8 bytes).
struct MmioRead {
  vpmu::GuestPhysical at;
  std::span<std::byte> data;
};

/// A store to where there is no RAM.
struct MmioWrite {
  vpmu::GuestPhysical at;
  std::span<const std::byte> data;
};

/// A debug event that KVM_SET_GUEST_DEBUG asked for, or a guest #DB/#BP while it is on.
struct Debug {
  std::uint32_t exception;  ///< 1 = #DB, 3 = #BP.
  std::uint64_t pc;
  std::uint64_t dr6, dr7;
  bool of_guest{};  ///< Whoever ran the vCPU knows that it is the guest's own.
};

/// HLT, and nothing will ever wake the vCPU.
struct Hlt {};
/// A vCPU with virtual time has run for as long as it may.
struct TimeUp {};
/// Triple fault.
struct Shutdown {};
/// KVM_EXIT_SYSTEM_EVENT.
struct SystemEvent {
  std::uint32_t type;
};
/// A signal or a kick ended KVM_RUN; no guest access is pending.
struct Interrupted {
  bool kicked{};  ///< By a kick of ours, not by somebody else who shares the vCPU's flag.
};
/// The CPU refused the guest state.
struct EntryFailed {
  std::uint64_t reason;
};
/// KVM gave up, for example on an instruction that it cannot emulate.
struct InternalError {
  std::uint32_t suberror;
  std::array<std::uint64_t, 4> data;
};
/// An exit reason that is not handled here.
struct Unknown {
  std::uint32_t reason;
};

/// Why KVM_RUN returned. References and spans point into kvm_run and live until the next run().
using Exit = std::variant<MsrRead, MsrWrite, CounterRead, PortRead, PortWrite, MmioRead, MmioWrite, Debug, Hlt, TimeUp,
                          Shutdown, SystemEvent, Interrupted, EntryFailed, InternalError, Unknown>;

/// Makes one visitor from several lambdas: `std::visit(overload{...}, exit)`.
template <class... Handlers>
struct overload : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
overload(Handlers...) -> overload<Handlers...>;

}  // namespace vmm
