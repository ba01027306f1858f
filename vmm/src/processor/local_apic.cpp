#include "processor/local_apic.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

namespace vmm {
namespace {

constexpr std::uint32_t software_enable = 1U << 8, masked = 1U << 16;
/// Version 14H with seven local vectors. SDM 3A figure 10-7.
constexpr std::uint32_t version_value = 0x0006'0014;
/// DFR: the model is in bits 31:28. SDM 3A figure 10-14.
constexpr std::uint32_t flat_model = ~0U, not_model = 0x0FFF'FFFF;

/// Of a local vector: delivery status, and remote IRR, which are read-only. SDM 3A figure 10-8.
constexpr std::uint32_t delivery_status = 1U << 12, remote_irr = 1U << 14;
constexpr std::array local_vectors{apic::lvt_cmci,  apic::lvt_timer, apic::lvt_thermal, apic::lvtpc,
                                   apic::lvt_lint0, apic::lvt_lint1, apic::lvt_error};

constexpr apic::Register read_only{.readable = true};
constexpr apic::Register writable_bits(std::uint32_t bits, std::uint32_t ignored = 0) {
  return {.readable = true, .writable = true, .bits = bits, .ignored = ignored};
}
constexpr apic::Register local_vector(std::uint32_t bits) {
  return writable_bits(masked | bits, delivery_status | remote_irr);
}

}  // namespace

apic::Register apic::register_at(std::uint32_t offset) {
  if (offset % 0x10 != 0) return {};
  if (offset >= in_service && offset < error_status) return read_only;
  switch (offset) {
    case id:
    case version:
    case processor_priority:
    case logical_destination:
    case destination_format:
    case current_count: return read_only;
    case task_priority: return writable_bits(0xFF);
    case end_of_interrupt:
    case self_interrupt: return {.writable = true, .bits = 0xFF};
    case spurious: return writable_bits(0x3FF);
    case error_status: return writable_bits(0);
    case command_low: return writable_bits(0xC'CFFF, delivery_status);
    case command_high: return writable_bits(~0U);
    case lvt_timer: return local_vector(0x6'00FF);
    case lvt_cmci:
    case lvt_thermal:
    case lvtpc: return local_vector(0x7FF);
    case lvt_lint0:
    case lvt_lint1: return local_vector(0xA7FF);
    case lvt_error: return local_vector(0xFF);
    case initial_count: return writable_bits(~0U);
    case divide: return writable_bits(0xB);
    default: return {};
  }
}

void SoftApic::reset(std::uint32_t processor) {
  constexpr unsigned id_shift = 24;
  page_ = {};
  errors_ = 0;
  put(apic::version, version_value);
  put(apic::id, processor << id_shift);
  put(apic::destination_format, flat_model);
  write(apic::spurious, 0xFF);
}

void SoftApic::put(std::uint32_t offset, std::uint32_t value) {
  std::memcpy(page_.regs + offset, &value, sizeof value);
}

std::uint32_t SoftApic::read(std::uint32_t offset) const {
  if (offset % 0x10 != 0 || offset + sizeof(std::uint32_t) > sizeof page_.regs) return 0;
  std::uint32_t value{};
  std::memcpy(&value, page_.regs + offset, sizeof value);
  return value;
}

void SoftApic::write(std::uint32_t offset, std::uint32_t value) {
  // Software writes these two in xAPIC mode only.
  const apic::Register is = offset == apic::logical_destination  ? writable_bits(0xFF00'0000)
                            : offset == apic::destination_format ? writable_bits(~not_model)
                                                                 : apic::register_at(offset);
  if (!is.readable || !is.writable) return;
  if (offset == apic::error_status) return put(offset, std::exchange(errors_, 0));
  value &= is.bits;
  if (offset == apic::destination_format) value |= not_model;
  const bool disabled = ((offset == apic::spurious ? value : read(apic::spurious)) & software_enable) == 0;
  if (std::ranges::find(local_vectors, offset) != local_vectors.end() && disabled) value |= masked;
  put(offset, value);
  if (offset == apic::spurious && disabled) mask_local_vectors();
  update_priority();
}

std::optional<std::uint8_t> SoftApic::end_interrupt() {
  const auto vector = highest(apic::in_service);
  if (!vector) return std::nullopt;
  set_bit(apic::in_service, *vector, false);
  update_priority();
  return has_bit(apic::trigger_mode, *vector) ? vector : std::nullopt;
}

void SoftApic::note_error(std::uint32_t error) {
  if ((errors_ & error) != 0) return;
  errors_ |= error;
  const std::uint32_t local = read(apic::lvt_error);
  const auto vector = static_cast<std::uint8_t>(local);
  if ((local & masked) == 0 && apic::is_legal_vector(vector)) request(vector);
}

// SDM 3A 10.4.7.2: software-disabling the APIC masks all local vectors.
void SoftApic::mask_local_vectors() {
  for (const std::uint32_t offset : local_vectors) {
    const std::uint32_t value = read(offset) | masked;
    put(offset, value);
  }
}

void SoftApic::request(std::uint8_t vector, bool level) {
  if ((read(apic::spurious) & software_enable) == 0) return;
  set_bit(apic::requested, vector, true);
  set_bit(apic::trigger_mode, vector, level);
}

std::optional<std::uint8_t> SoftApic::pending() const {
  const auto vector = highest(apic::requested);
  return vector && (*vector & 0xF0U) > (read(apic::processor_priority) & 0xF0U) ? vector : std::nullopt;
}

void SoftApic::accept(std::uint8_t vector) {
  set_bit(apic::requested, vector, false);
  set_bit(apic::in_service, vector, true);
  update_priority();
}

std::optional<std::uint8_t> SoftApic::highest(std::uint32_t first_offset) const {
  for (unsigned word = 8; word-- > 0;)
    if (const std::uint32_t bits = read(first_offset + word * 0x10); bits != 0)
      return static_cast<std::uint8_t>(word * 32 + static_cast<unsigned>(std::bit_width(bits)) - 1);
  return std::nullopt;
}

void SoftApic::set_bit(std::uint32_t first_offset, std::uint8_t vector, bool on) {
  const std::uint32_t offset = first_offset + vector / 32 * 0x10U;
  const std::uint32_t bit = 1U << (vector % 32);
  const std::uint32_t value = on ? read(offset) | bit : read(offset) & ~bit;
  put(offset, value);
}

bool SoftApic::has_bit(std::uint32_t first_offset, std::uint8_t vector) const {
  return (read(first_offset + vector / 32 * 0x10U) >> (vector % 32) & 1) != 0;
}

// SDM 3A 10.8.3.1: the higher of the task's priority class and that of the interrupt in service.
void SoftApic::update_priority() {
  const std::uint32_t task = read(apic::task_priority) & 0xFF;
  const std::uint32_t serving = highest(apic::in_service).value_or(0) & 0xF0U;
  const std::uint32_t value = (task & 0xF0) >= serving ? task : serving;
  put(apic::processor_priority, value);
}

}  // namespace vmm
