#include "processor/interrupt_unit.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t msr_tsc_deadline = 0x6E0, msr_x2apic_first = 0x800, msr_x2apic_last = 0x83F;
/// Position of an id in the registers of xAPIC mode. SDM 3A figures 10-6, 10-12, 10-13.
constexpr unsigned xapic_id_shift = 24;
constexpr std::uint32_t xapic_everyone = 0xFF, x2apic_everyone = ~0U;
/// Lower vectors are not valid for interrupts. SDM 3A 10.5.2.
constexpr std::uint8_t least_vector = 16;
// SDM 3A figure 10-8.
using VECTOR = vpmu::Bits<7, 0>;
using MASKED = vpmu::Bits<16>;
using TIMER_MODE = vpmu::Bits<18, 17>;
constexpr std::uint64_t mode_periodic = 1, mode_deadline = 2;

/// SDM 3A figure 10-10: bits 0, 1 and 3 are the exponent, of which 111B is 0.
std::uint64_t divisor_of(std::uint32_t configuration) {
  return 1ULL << (((configuration & 3) | (configuration >> 1 & 4)) + 1) % 8;
}

/// ICR. SDM 3A figure 10-12, 10.12.9.
namespace command {
using VECTOR = vpmu::Bits<7, 0>;
using MODE = vpmu::Bits<10, 8>;
using LOGICAL = vpmu::Bits<11>;
using ASSERT = vpmu::Bits<14>;
using SHORTHAND = vpmu::Bits<19, 18>;
enum Shorthand : std::uint8_t { none, self, all, others };
}  // namespace command

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
  if (served && io_apic() != nullptr) io_apic()->end_of_interrupt(*served);
  if (offset == apic::command_low) send(value, s_->apic.read(apic::command_high) >> xapic_id_shift);
  // A switch to or from deadline mode disarms the timer; a new initial count or divisor starts a new count. SDM 3A
  // 10.5.4.1.
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
  const std::uint64_t tsc = time_->tsc();
  if (deadline_ != 0) timer_.arm(time_->wall() + (deadline_ > tsc ? deadline_ - tsc : 0));
}

void InterruptUnit::reset() {
  timer_.stop();
  deadline_ = 0;
}

bool InterruptUnit::is_x2apic() const { return (s_->sregs.apic_base & apic_base_extd) != 0; }

// SDM 3A 10.12.10.2.
std::uint32_t InterruptUnit::x2apic_logical_id() const { return s_->id >> 4 << 16 | 1U << (s_->id & 0xF); }

// SDM 3A 10.6.2.2, 10.12.10.1: with clusters, the upper bits must be equal, and one of the lower bits be set in both.
bool InterruptUnit::has_logical_id(std::uint32_t destination) const {
  constexpr std::uint32_t x2apic_members = 0xFFFF, xapic_members = 0xF;
  const auto matches = [&](std::uint32_t id, std::uint32_t members) {
    return ((id ^ destination) & ~members) == 0 && (id & destination & members) != 0;
  };
  if (is_x2apic()) return matches(x2apic_logical_id(), x2apic_members);
  const std::uint32_t id = s_->apic.read(apic::logical_destination) >> xapic_id_shift;
  const bool flat = s_->apic.read(apic::destination_format) == ~0U;
  return matches(id, flat ? xapic_everyone : xapic_members);
}

// A disabled APIC receives nothing. SDM 3A 10.4.3.
bool InterruptUnit::is_addressed(const ApicMessage& message) const {
  if ((s_->sregs.apic_base & apic_base_enabled) == 0) return false;
  if (message.everyone) return true;
  return message.logical ? has_logical_id(message.destination) : message.destination == s_->id;
}

void InterruptUnit::receive(ApicMessage::Mode mode, std::uint8_t vector) {
  switch (mode) {
    case ApicMessage::Mode::fixed:
    case ApicMessage::Mode::lowest_priority:
      if (vector >= least_vector) s_->apic.request(vector);
      return;
    case ApicMessage::Mode::nmi: return add_nmi(*s_);
    case ApicMessage::Mode::init:
      s_->init_pending = true;
      s_->start_pending.reset();
      return;
    case ApicMessage::Mode::start_up:
      if (s_->waits_for_start || s_->init_pending) s_->start_pending = vector;
      return;
    case ApicMessage::Mode::smi:
    case ApicMessage::Mode::reserved:
    case ApicMessage::Mode::external: return;
  }
}

/// An IPI. SDM 3A 10.6.1; an INIT level de-assert is ignored.
void InterruptUnit::send(std::uint32_t command, std::uint32_t destination) {
  using namespace command;
  ApicMessage message{.vector = static_cast<std::uint8_t>(VECTOR::get(command)),
                      .mode = static_cast<ApicMessage::Mode>(MODE::get(command)),
                      .everyone = destination == (is_x2apic() ? x2apic_everyone : xapic_everyone),
                      .logical = LOGICAL::test(command),
                      .destination = destination};
  if (message.mode == ApicMessage::Mode::init && !ASSERT::test(command)) return;
  const auto shorthand = static_cast<Shorthand>(SHORTHAND::get(command));
  if (shorthand == self) return receive(message.mode, message.vector);
  message.everyone = message.everyone || shorthand != none;
  if (bus_ != nullptr) bus_->send(message, shorthand == others ? this : nullptr);
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
  if (!is_x2apic() || absent) return {.status = MsrStatus::gp};
  if (offset == apic::id) return {.status = MsrStatus::ok, .value = s_->id};
  if (offset == apic::logical_destination) return {.status = MsrStatus::ok, .value = x2apic_logical_id()};
  if (offset == apic::command_low)
    return {.status = MsrStatus::ok, .value = std::uint64_t{read(apic::command_high)} << 32 | read(offset)};
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
  if (!is_x2apic() || read_only || (must_be_zero && value != 0)) return MsrStatus::gp;
  if (offset != apic::command_low && value >> 32 != 0) return MsrStatus::gp;
  if (offset == apic::self_interrupt) {
    receive(ApicMessage::Mode::fixed, static_cast<std::uint8_t>(value));
  } else if (offset == apic::command_low) {
    s_->apic.write(apic::command_high, static_cast<std::uint32_t>(value >> 32));
    s_->apic.write(offset, static_cast<std::uint32_t>(value));
    send(static_cast<std::uint32_t>(value), static_cast<std::uint32_t>(value >> 32));
  } else {
    write(offset, static_cast<std::uint32_t>(value));
  }
  return MsrStatus::ok;
}

void InterruptUnit::refresh() {
  if (timer_.take_due(time_->wall())) {
    deadline_ = 0;
    const std::uint32_t lvt = s_->apic.read(apic::lvt_timer);
    if (!MASKED::test(lvt)) s_->apic.request(static_cast<std::uint8_t>(VECTOR::get(lvt)));
  }
  if (bus_ != nullptr) bus_->deliver_from_devices();
}

std::uint64_t InterruptUnit::until_due() const {
  const auto due = timer_.due();
  return due ? *due - std::min(*due, time_->wall()) : ~0ULL;
}

}  // namespace vmm
