#include "processor/interrupt_unit.hpp"

#include "support/x86.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/msr.hpp"

namespace vmm {
namespace {

constexpr std::uint32_t first_x2apic_msr = 0x800, last_x2apic_msr = 0x8FF;
/// Position of an id in the registers of xAPIC mode. SDM 3A figures 10-6, 10-12, 10-13.
constexpr unsigned xapic_id_shift = 24;
constexpr std::uint32_t xapic_everyone = 0xFF, x2apic_everyone = ~0U;
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
/// ICR of a fixed interrupt to the sender itself.
constexpr std::uint32_t self_command = std::uint32_t{self} << 18;
}  // namespace command
using command::self_command;

/// x2APIC mode has no DFR, and ICR is one register. SDM 3A table 10-6.
bool is_x2apic_register(std::uint32_t offset) {
  return offset != apic::destination_format && offset != apic::command_high;
}

}  // namespace

bool InterruptUnit::in_deadline_mode() const {
  return TIMER_MODE::get(s_->apic.read(apic::lvt_timer)) == mode_deadline;
}

bool InterruptUnit::is_periodic() const { return TIMER_MODE::get(s_->apic.read(apic::lvt_timer)) == mode_periodic; }

std::uint32_t InterruptUnit::read(std::uint32_t offset) const {
  if (offset == apic::current_count) return in_deadline_mode() ? 0 : timer_.left(time_->wall());
  check_register(offset);
  return s_->apic.read(offset);
}

/// SDM 3A 10.5.3: an access to a reserved register of the page is an error. Table 10-1 has two more than x2APIC mode.
void InterruptUnit::check_register(std::uint32_t offset) const {
  const apic::Register is = apic::register_at(offset);
  const bool is_there = offset == apic::arbitration_priority || offset == apic::remote_read ||
                        (offset != apic::self_interrupt && (is.readable || is.writable));
  if (!is_there && !is_x2apic()) s_->apic.note_error(apic::illegal_register);
}

void InterruptUnit::write(std::uint32_t offset, std::uint32_t value) {
  check_register(offset);
  switch (offset) {
    case apic::end_of_interrupt:
      if (const auto served = s_->apic.end_interrupt(); served && io_apic() != nullptr)
        io_apic()->end_of_interrupt(*served);
      return;
    case apic::lvt_timer: return write_timer_vector(value);
    case apic::command_low:
      s_->apic.write(offset, value);
      return send(value, s_->apic.read(apic::command_high) >> (is_x2apic() ? 0 : xapic_id_shift));
    case apic::command_high: return s_->apic.write(offset, value & 0xFFU << xapic_id_shift);
    case apic::initial_count: s_->apic.write(offset, value); return start_count();
    case apic::divide:
      s_->apic.write(offset, value);
      if (!in_deadline_mode()) timer_.divide(divisor_of(s_->apic.read(offset)), time_->wall());
      return;
    default: return s_->apic.write(offset, value);
  }
}

// A switch to or from deadline mode disarms the timer; one between the other two lets the count go on. SDM 3A
// 10.5.4, 10.5.4.1.
void InterruptUnit::write_timer_vector(std::uint32_t value) {
  const bool was_deadline = in_deadline_mode();
  s_->apic.write(apic::lvt_timer, value);
  if (in_deadline_mode() != was_deadline) return reset();
  if (!was_deadline) timer_.repeat(is_periodic() ? s_->apic.read(apic::initial_count) : 0);
}

void InterruptUnit::start_count() {
  if (in_deadline_mode()) return;
  timer_.count(s_->apic.read(apic::initial_count), divisor_of(s_->apic.read(apic::divide)), is_periodic(),
               time_->wall());
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

bool InterruptUnit::is_x2apic() const { return x86::apic_base::EXTD::test(s_->sregs.apic_base); }

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
  if (!x86::apic_base::EN::test(s_->sregs.apic_base)) return false;
  if (message.everyone) return true;
  return message.logical ? has_logical_id(message.destination) : message.destination == s_->id;
}

void InterruptUnit::receive(const ApicMessage& message) {
  switch (message.mode) {
    case ApicMessage::Mode::fixed:
    case ApicMessage::Mode::lowest_priority:
      if (!apic::is_legal_vector(message.vector)) return s_->apic.note_error(apic::receive_illegal_vector);
      return s_->apic.request(message.vector, message.level);
    case ApicMessage::Mode::nmi: return add_nmi(*s_);
    case ApicMessage::Mode::init:
      s_->init_pending = true;
      s_->start_pending.reset();
      return;
    case ApicMessage::Mode::start_up:
      if (s_->waits_for_start || s_->init_pending) s_->start_pending = message.vector;
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
  if (message.mode <= ApicMessage::Mode::lowest_priority && !apic::is_legal_vector(message.vector))
    return s_->apic.note_error(apic::send_illegal_vector);
  const auto shorthand = static_cast<Shorthand>(SHORTHAND::get(command));
  if (shorthand == self) return receive(message);
  message.everyone = message.everyone || shorthand != none;
  if (bus_ != nullptr) bus_->send(message, shorthand == others ? this : nullptr);
}

void InterruptUnit::tsc_changed() {
  if (in_deadline_mode()) arm_deadline();
}

vpmu::MsrReadResult InterruptUnit::rdmsr(std::uint32_t index) const {
  using vpmu::MsrStatus;
  if (index == vpmu::msr::IA32_TSC_DEADLINE.value()) return {.status = MsrStatus::ok, .value = deadline_};
  if (index < first_x2apic_msr || index > last_x2apic_msr) return {.status = MsrStatus::unknown};
  const std::uint32_t offset = (index - first_x2apic_msr) << 4;
  if (!is_x2apic() || !is_x2apic_register(offset) || !apic::register_at(offset).readable)
    return {.status = MsrStatus::gp};
  if (offset == apic::id) return {.status = MsrStatus::ok, .value = s_->id};
  if (offset == apic::logical_destination) return {.status = MsrStatus::ok, .value = x2apic_logical_id()};
  if (offset == apic::command_low)
    return {.status = MsrStatus::ok, .value = std::uint64_t{read(apic::command_high)} << 32 | read(offset)};
  return {.status = MsrStatus::ok, .value = read(offset)};
}

vpmu::MsrStatus InterruptUnit::wrmsr(std::uint32_t index, std::uint64_t value) {
  using vpmu::MsrStatus;
  if (index == vpmu::msr::IA32_TSC_DEADLINE.value()) {
    if (!in_deadline_mode()) return MsrStatus::ok;
    deadline_ = value;
    arm_deadline();
    return MsrStatus::ok;
  }
  if (index < first_x2apic_msr || index > last_x2apic_msr) return MsrStatus::unknown;
  const std::uint32_t offset = (index - first_x2apic_msr) << 4;
  const apic::Register is = apic::register_at(offset);
  const bool is_64_bits = offset == apic::command_low;
  const std::uint64_t allowed = is_64_bits ? ~0ULL << 32 | is.bits | is.ignored : is.bits | is.ignored;
  const bool must_be_zero = offset == apic::end_of_interrupt || offset == apic::error_status;
  if (!is_x2apic() || !is_x2apic_register(offset) || !is.writable || (value & (must_be_zero ? ~0ULL : ~allowed)) != 0)
    return MsrStatus::gp;
  if (offset == apic::self_interrupt) {
    send(self_command | static_cast<std::uint8_t>(value), 0);
    return MsrStatus::ok;
  }
  if (is_64_bits) s_->apic.write(apic::command_high, static_cast<std::uint32_t>(value >> 32));
  write(offset, static_cast<std::uint32_t>(value));
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
