#include "pmu/pmi.hpp"

#include <cstring>

#include "vpmu/bits.hpp"

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
constexpr std::uint32_t msr_x2apic_lvtpc = 0x834;
constexpr std::uint32_t msr_x2apic_id = 0x802;
constexpr std::uint64_t apic_base_extd = vpmu::bit(10), apic_base_en = vpmu::bit(11);

std::uint32_t word_at(const kvm_lapic_state& state, unsigned offset) {
  std::uint32_t word{};
  std::memcpy(&word, state.regs + offset, sizeof word);
  return word;
}

/// LVTPC wherever the APIC's mode keeps it. In x2APIC mode one MSR access reads or writes it; in xAPIC mode KVM gives
/// the whole register page, and the port writes the one register. Only the vCPU itself changes LVTPC, and it does not
/// run meanwhile.
class Lvtpc {
 public:
  static Result<Lvtpc> read(VcpuPort& port) {
    Lvtpc l{port};
    VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
    l.x2apic_ = (sregs.apic_base & apic_base_extd) != 0;
    if (l.x2apic_) {
      VMM_ASSIGN(l.value_, port.msr(msr_x2apic_lvtpc));
      return l;
    }
    VMM_ASSIGN(l.page_, port.lapic());
    l.value_ = word_at(l.page_, lvtpc_offset);
    l.enabled_ = (sregs.apic_base & apic_base_en) != 0;
    return l;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }
  /// A processor whose APIC is off has no LVT that could deliver anything. SDM 3A 10.4.3.
  [[nodiscard]] bool is_masked() const { return lvt::MASK::test(value_) || !enabled_; }

  Result<Stored> set_mask() {
    const std::uint64_t masked = value_ | lvt::MASK::mask;
    if (!x2apic_) return port_->store_lvtpc(static_cast<std::uint32_t>(masked));
    VMM_TRY(port_->set_msr(msr_x2apic_lvtpc, masked));
    return Stored::done;
  }

  Result<std::uint32_t> apic_id() {
    if (!x2apic_) return word_at(page_, id_offset) >> 24;
    VMM_ASSIGN(const std::uint64_t id, port_->msr(msr_x2apic_id));
    return static_cast<std::uint32_t>(id);
  }

 private:
  explicit Lvtpc(VcpuPort& port) : port_{&port} {}
  VcpuPort* port_;
  bool x2apic_{};
  bool enabled_{true};
  std::uint64_t value_{};
  kvm_lapic_state page_{};
};

}  // namespace

void Pmi::request() {
  ++statistics_.requested;
  if (pending_ < 2 && !held_)
    ++pending_;
  else
    ++statistics_.joined;
}

Result<bool> Pmi::is_masked(VcpuPort& port) {
  VMM_ASSIGN(const Lvtpc lvtpc, Lvtpc::read(port));
  return lvtpc.is_masked();
}

Result<void> Pmi::deliver(VcpuPort& port) {
  while (pending_ > 0) {
    VMM_ASSIGN(Lvtpc lvtpc, Lvtpc::read(port));
    if (lvtpc.is_masked()) {
      if (policy_ == LvtpcMasked::drop) {
        statistics_.dropped += pending_;
        pending_ = 0;
      } else if (pending_ > 1) {
        ++statistics_.joined;  // masked requests join into one (rule V5)
        pending_ = 1;
      }
      held_ = pending_ > 0;
      return {};
    }
    held_ = false;
    VMM_ASSIGN(const Stored mask, lvtpc.set_mask());
    if (mask == Stored::not_now) {
      ++statistics_.put_off;
      return {};
    }
    if (mask == Stored::never) ++statistics_.unmasked;
    --pending_;
    switch (lvt::DELIVERY_MODE::get(lvtpc.value())) {
      case lvt::mode_nmi:
        VMM_TRY(port.nmi());
        ++statistics_.delivered_nmi;
        break;
      case lvt::mode_fixed: {
        VMM_ASSIGN(const std::uint32_t id, lvtpc.apic_id());
        VMM_TRY(port.interrupt(id, static_cast<std::uint8_t>(lvt::VECTOR::get(lvtpc.value()))));
        ++statistics_.delivered_fixed;
        break;
      }
      default: ++statistics_.undeliverable; break;
    }
  }
  return {};
}

}  // namespace vmm
