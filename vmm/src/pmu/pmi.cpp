#include "pmu/pmi.hpp"

#include <cstring>
#include <utility>

#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

// SDM 3A figure 10-8.
namespace lvt {
using VECTOR = vpmu::Bits<7, 0>;
using DELIVERY_MODE = vpmu::Bits<10, 8>;
using MASK = vpmu::Bits<16>;
constexpr std::uint64_t mode_fixed = 0;
constexpr std::uint64_t mode_nmi = 4;
}  // namespace lvt

constexpr unsigned lvtpc_offset = 0x340;
constexpr unsigned id_offset = 0x20;

std::uint32_t word_at(const kvm_lapic_state& state, unsigned offset) {
  std::uint32_t word{};
  std::memcpy(&word, state.regs + offset, sizeof word);
  return word;
}

/// LVTPC wherever the APIC's mode keeps it. In x2APIC mode one MSR access reads or writes it; in xAPIC mode KVM gives
/// the whole register page, and the back end writes the one register. Only the vCPU itself changes LVTPC, and it does
/// not run meanwhile.
class Lvtpc {
 public:
  static Result<Lvtpc> read(VcpuBackend& backend) {
    Lvtpc l{backend};
    VMM_ASSIGN(const kvm_sregs sregs, backend.sregs());
    l.x2apic_ = x86::apic_base::EXTD::test(sregs.apic_base);
    if (l.x2apic_) {
      VMM_ASSIGN(l.value_, backend.msr(vpmu::msr::IA32_X2APIC_LVT_PMI.value()));
      return l;
    }
    VMM_ASSIGN(l.page_, backend.lapic());
    l.value_ = word_at(l.page_, lvtpc_offset);
    l.enabled_ = x86::apic_base::EN::test(sregs.apic_base);
    return l;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }
  /// A processor whose APIC is off has no LVT that could deliver anything. SDM 3A 10.4.3.
  [[nodiscard]] bool is_masked() const { return lvt::MASK::test(value_) || !enabled_; }

  Result<Stored> set_mask() {
    const std::uint64_t masked = value_ | lvt::MASK::mask;
    if (!x2apic_) return backend_->store_lvtpc(static_cast<std::uint32_t>(masked));
    VMM_TRY(backend_->set_msr(vpmu::msr::IA32_X2APIC_LVT_PMI.value(), masked));
    return Stored::done;
  }

  Result<std::uint32_t> apic_id() {
    if (!x2apic_) return word_at(page_, id_offset) >> 24;
    VMM_ASSIGN(const std::uint64_t id, backend_->msr(vpmu::msr::IA32_X2APIC_APICID.value()));
    return static_cast<std::uint32_t>(id);
  }

 private:
  explicit Lvtpc(VcpuBackend& backend) : backend_{&backend} {}
  VcpuBackend* backend_;
  bool x2apic_{};
  bool enabled_{true};
  std::uint64_t value_{};
  kvm_lapic_state page_{};
};

}  // namespace

// Requests of one boundary are one interrupt. That holds for the two of a counter with PEBS and INT, too (rule Q5): the
// first delivery masks LVTPC before the second.
void Pmi::request() {
  ++statistics_.requested;
  if (std::exchange(pending_, true)) ++statistics_.joined;
}

Result<bool> Pmi::is_masked(VcpuBackend& backend) {
  VMM_ASSIGN(const Lvtpc lvtpc, Lvtpc::read(backend));
  return lvtpc.is_masked();
}

// A processor keeps no PMI for a masked LVTPC: Linux unmasks it at the end of its handler on Haswell and later, and
// would get an NMI that belongs to no counter.
Result<void> Pmi::deliver(VcpuBackend& backend, bool may_raise) {
  if (!pending_) return {};
  VMM_ASSIGN(Lvtpc lvtpc, Lvtpc::read(backend));
  if (lvtpc.is_masked()) {
    ++statistics_.dropped;
    pending_ = false;
    return {};
  }
  if (!may_raise) return {};
  VMM_ASSIGN(const Stored mask, lvtpc.set_mask());
  if (mask == Stored::not_now) {
    ++statistics_.put_off;
    return {};
  }
  if (mask == Stored::never) ++statistics_.unmasked;
  pending_ = false;
  switch (lvt::DELIVERY_MODE::get(lvtpc.value())) {
    case lvt::mode_nmi:
      VMM_TRY(backend.nmi());
      ++statistics_.delivered_nmi;
      break;
    case lvt::mode_fixed: {
      VMM_ASSIGN(const std::uint32_t id, lvtpc.apic_id());
      VMM_TRY(backend.interrupt(id, static_cast<std::uint8_t>(lvt::VECTOR::get(lvtpc.value()))));
      ++statistics_.delivered_fixed;
      break;
    }
    default: ++statistics_.undeliverable; break;
  }
  return {};
}

}  // namespace vmm
