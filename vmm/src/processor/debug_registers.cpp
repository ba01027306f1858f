#include "processor/debug_registers.hpp"

#include "support/x86.hpp"
#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// R/W fields of DR7.
constexpr std::uint64_t on_execution = 0, on_write = 1, on_port = 2, on_access = 3;

bool is_enabled(const Watch& w, unsigned i) { return (w.dr7 >> (2 * i) & 3) != 0; }
std::uint64_t kind_of(const Watch& w, unsigned i) { return w.dr7 >> (16 + 4 * i) & 3; }
std::uint64_t length_of(const Watch& w, unsigned i) {
  constexpr std::array<std::uint64_t, 4> lengths{1, 2, 8, 4};
  return lengths[w.dr7 >> (18 + 4 * i) & 3];
}

/// The first byte of a data or I/O breakpoint: its low bits do not count. SDM 3B 17.2.5.
std::uint64_t start_of(const Watch& w, unsigned i) { return w.at[i] & ~(length_of(w, i) - 1); }
bool covers(const Watch& w, unsigned i, std::uint64_t at, std::uint64_t bytes) {
  return at < start_of(w, i) + length_of(w, i) && start_of(w, i) < at + bytes;
}

}  // namespace

Watch watch_of(const SoftState& state, const kvm_guest_debug& host) {
  const std::uint32_t control = (host.control & KVM_GUESTDBG_ENABLE) != 0 ? host.control : 0;
  Watch w{.host_step = (control & KVM_GUESTDBG_SINGLESTEP) != 0,
          .guest_step = x86::rflags::TF::test(state.regs.rflags),
          .to_host = (control & (KVM_GUESTDBG_SINGLESTEP | KVM_GUESTDBG_USE_HW_BP)) != 0};
  const bool hosts = (control & KVM_GUESTDBG_USE_HW_BP) != 0;
  for (unsigned i = 0; i < w.at.size(); ++i) w.at[i] = hosts ? host.arch.debugreg[i] : state.debug.db[i];
  w.dr7 = hosts ? host.arch.debugreg[7] : state.debug.dr7;
  return w;
}

Watch watch_of(const kvm_debugregs& guest) {
  Watch w{.dr7 = guest.dr7};
  for (unsigned i = 0; i < w.at.size(); ++i) w.at[i] = guest.db[i];
  return w;
}

bool watches_data(const Watch& w) {
  for (unsigned i = 0; i < w.at.size(); ++i)
    if (is_enabled(w, i) && kind_of(w, i) != on_execution) return true;
  return false;
}

bool watches_data_near(const Watch& w, std::uint64_t at, std::uint64_t distance) {
  for (unsigned i = 0; i < w.at.size(); ++i) {
    if (!is_enabled(w, i) || kind_of(w, i) == on_execution) continue;
    if (start_of(w, i) + length_of(w, i) - at < distance || at - start_of(w, i) < distance) return true;
  }
  return false;
}

std::uint64_t execution_hits(const Watch& w, std::uint64_t rip) {
  std::uint64_t hits = 0;
  for (unsigned i = 0; i < w.at.size(); ++i)
    if (is_enabled(w, i) && kind_of(w, i) == on_execution && w.at[i] == rip) hits |= vpmu::bit(i);
  return hits;
}

std::uint64_t data_hits(const Watch& w, std::span<const Access> accesses) {
  std::uint64_t hits = 0;
  for (unsigned i = 0; i < w.at.size(); ++i) {
    for (const Access& a : accesses) {
      const bool watched = kind_of(w, i) == on_access || (kind_of(w, i) == on_write && a.write);
      if (is_enabled(w, i) && watched && covers(w, i, a.at, a.bytes)) hits |= vpmu::bit(i);
    }
  }
  return hits;
}

std::uint64_t port_hits(const Watch& w, std::uint16_t port, std::uint8_t bytes) {
  std::uint64_t hits = 0;
  for (unsigned i = 0; i < w.at.size(); ++i)
    if (is_enabled(w, i) && kind_of(w, i) == on_port && covers(w, i, port, bytes)) hits |= vpmu::bit(i);
  return hits;
}

}  // namespace vmm
