#include "vcpu/pmi.hpp"

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
constexpr std::uint64_t apic_base_extd = vpmu::bit(10);

std::uint32_t word_at(const kvm_lapic_state& state, unsigned offset) {
  std::uint32_t word{};
  std::memcpy(&word, state.regs + offset, sizeof word);
  return word;
}

void set_word_at(kvm_lapic_state& state, unsigned offset, std::uint32_t word) {
  std::memcpy(state.regs + offset, &word, sizeof word);
}

/// LVTPC wherever the APIC's mode keeps it. In x2APIC mode one MSR access reads or writes it; in xAPIC mode KVM offers
/// only the whole register page, and writing that page back can lose an interrupt that arrives in between.
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
    return l;
  }
  [[nodiscard]] std::uint64_t value() const { return value_; }

  Result<void> set_mask() {
    value_ |= lvt::MASK::mask;
    if (x2apic_) return port_->set_msr(msr_x2apic_lvtpc, value_);
    set_word_at(page_, lvtpc_offset, static_cast<std::uint32_t>(value_));
    return port_->set_lapic(page_);
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
  return lvt::MASK::test(lvtpc.value());
}

Result<void> Pmi::deliver(VcpuPort& port) {
  while (pending_ > 0) {
    VMM_ASSIGN(Lvtpc lvtpc, Lvtpc::read(port));
    if (lvt::MASK::test(lvtpc.value())) {
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
    --pending_;
    // The mask goes first: writing an xAPIC page overwrites IRR and would take the interrupt away again.
    VMM_TRY(lvtpc.set_mask());
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
