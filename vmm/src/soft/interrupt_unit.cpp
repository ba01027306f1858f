#include "soft/interrupt_unit.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t msr_tsc_deadline = 0x6E0, msr_x2apic_first = 0x800, msr_x2apic_last = 0x83F;
constexpr std::uint64_t apic_base_extd = vpmu::bit(10);
// SDM 3A figure 10-8.
using VECTOR = vpmu::Bits<7, 0>;
using MASKED = vpmu::Bits<16>;
using TIMER_MODE = vpmu::Bits<18, 17>;
constexpr std::uint64_t mode_periodic = 1, mode_deadline = 2;

/// SDM 3A figure 10-10: bits 0, 1 and 3 are the exponent, of which 111B is 0.
std::uint64_t divisor_of(std::uint32_t configuration) {
  return 1ULL << (((configuration & 3) | (configuration >> 1 & 4)) + 1) % 8;
}

/// A local APIC of id 0. SDM 3A 10.12.10.2.
constexpr std::uint32_t x2apic_logical_id = 1;

}  // namespace

bool InterruptUnit::in_deadline_mode() const {
  return TIMER_MODE::get(s_->apic.read(apic::lvt_timer)) == mode_deadline;
}

std::uint32_t InterruptUnit::read(std::uint32_t offset) const {
  if (offset == apic::current_count) return in_deadline_mode() ? 0 : timer_.left(time_->wall());
  return s_->apic.read(offset);
}

void InterruptUnit::write(std::uint32_t offset, std::uint32_t value) {
  const auto served = offset == apic::end_of_interrupt ? s_->apic.serving() : std::nullopt;
  const std::uint64_t mode = TIMER_MODE::get(s_->apic.read(apic::lvt_timer));
  s_->apic.write(offset, value);
  if (served && io_apic_ != nullptr) io_apic_->end_of_interrupt(*served);
  // Another mode disarms it; another initial count, divisor or kind of count begins a new one. SDM 3A 10.5.4.1.
  if (offset == apic::lvt_timer && TIMER_MODE::get(value) != mode && (in_deadline_mode() || mode == mode_deadline)) {
    timer_.stop();
    deadline_ = 0;
  }
  if (offset == apic::initial_count || offset == apic::divide) start_count();
}

void InterruptUnit::start_count() {
  if (in_deadline_mode()) return;
  const bool periodic = TIMER_MODE::get(s_->apic.read(apic::lvt_timer)) == mode_periodic;
  timer_.count(s_->apic.read(apic::initial_count), divisor_of(s_->apic.read(apic::divide)), periodic, time_->wall());
}

void InterruptUnit::arm_deadline() {
  timer_.stop();
  if (deadline_ != 0) timer_.arm(time_->wall() + (deadline_ > s_->tsc ? deadline_ - s_->tsc : 0));
}

void InterruptUnit::tsc_changed() {
  if (in_deadline_mode()) arm_deadline();
}

vpmu::MsrReadResult InterruptUnit::rdmsr(std::uint32_t index) const {
  using vpmu::MsrStatus;
  if (index == msr_tsc_deadline) return {.status = MsrStatus::ok, .value = deadline_};
  if (index < msr_x2apic_first || index > msr_x2apic_last) return {.status = MsrStatus::unknown};
  const std::uint32_t offset = (index - msr_x2apic_first) << 4;
  const bool absent = offset == apic::end_of_interrupt || offset == apic::destination_format ||
                      offset == apic::command_high || offset == apic::self_interrupt;
  if ((s_->sregs.apic_base & apic_base_extd) == 0 || absent) return {.status = MsrStatus::gp};
  if (offset == apic::logical_destination) return {.status = MsrStatus::ok, .value = x2apic_logical_id};
  return {.status = MsrStatus::ok, .value = read(offset)};
}

vpmu::MsrStatus InterruptUnit::wrmsr(std::uint32_t index, std::uint64_t value) {
  using vpmu::MsrStatus;
  if (index == msr_tsc_deadline) {
    if (!in_deadline_mode()) return MsrStatus::ok;
    deadline_ = value;
    arm_deadline();
    return MsrStatus::ok;
  }
  if (index < msr_x2apic_first || index > msr_x2apic_last) return MsrStatus::unknown;
  const std::uint32_t offset = (index - msr_x2apic_first) << 4;
  const bool read_only = offset == apic::id || offset == apic::version || offset == apic::processor_priority ||
                         offset == apic::logical_destination || offset == apic::destination_format ||
                         (offset >= apic::in_service && offset < apic::error_status) || offset == apic::command_high ||
                         offset == apic::current_count;
  const bool must_be_zero = offset == apic::end_of_interrupt || offset == apic::error_status;
  if ((s_->sregs.apic_base & apic_base_extd) == 0 || read_only || (must_be_zero && value != 0)) return MsrStatus::gp;
  if (offset != apic::command_low && value >> 32 != 0) return MsrStatus::gp;
  if (offset == apic::self_interrupt)
    s_->apic.request(static_cast<std::uint8_t>(value));
  else
    write(offset, static_cast<std::uint32_t>(value));
  return MsrStatus::ok;
}

void InterruptUnit::refresh() {
  if (timer_.take_due(time_->wall())) {
    deadline_ = 0;
    const std::uint32_t lvt = s_->apic.read(apic::lvt_timer);
    if (!MASKED::test(lvt)) s_->apic.request(static_cast<std::uint8_t>(VECTOR::get(lvt)));
  }
  if (io_apic_ == nullptr) return;
  constexpr unsigned most = IoApic::lines + 256;  // and the vectors of messages
  for (unsigned i = 0; i < most; ++i) {
    const auto vector = io_apic_->take();
    if (!vector) return;
    s_->apic.request(*vector);
  }
}

std::uint64_t InterruptUnit::until_due() const {
  const auto due = timer_.due();
  return due ? *due - std::min(*due, time_->wall()) : ~0ULL;
}

}  // namespace vmm
