#include "processor/local_apic.hpp"

#include <bit>
#include <cstring>

namespace vmm {
namespace {

using namespace apic;  // NOLINT(google-build-using-namespace)
constexpr std::uint32_t software_enable = 1U << 8, masked = 1U << 16;
/// Version 14H with seven local vectors. SDM 3A figure 10-7.
constexpr std::uint32_t version_value = 0x0006'0014;
/// DFR: the model is in bits 31:28. SDM 3A figure 10-14.
constexpr std::uint32_t flat = ~0U, not_model = 0x0FFF'FFFF;

}  // namespace

void SoftApic::reset(std::uint32_t processor) {
  constexpr unsigned id_shift = 24;
  page_ = {};
  put(version, version_value);
  put(id, processor << id_shift);
  put(destination_format, flat);
  write(spurious, 0xFF);
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
  if (offset % 0x10 != 0 || offset + sizeof value > sizeof page_.regs) return;
  const bool read_only = offset == apic::id || offset == version || offset == processor_priority ||
                         offset == current_count || (offset >= in_service && offset < requested + 0x80);
  if (read_only) return;
  if (offset == end_of_interrupt) {
    if (const auto vector = highest(in_service)) set_bit(in_service, *vector, false);
  } else {
    const bool disabled = ((offset == spurious ? value : read(spurious)) & software_enable) == 0;
    const bool local_vector = offset >= first_local_vector && offset <= last_local_vector;
    if (local_vector && disabled) value |= masked;
    if (offset == destination_format) value |= not_model;
    put(offset, value);
    if (offset == spurious && disabled) mask_local_vectors();
  }
  update_priority();
}

// SDM 3A 10.4.7.2: software-disabling the APIC masks all local vectors.
void SoftApic::mask_local_vectors() {
  for (std::uint32_t offset = first_local_vector; offset <= last_local_vector; offset += 0x10) {
    const std::uint32_t value = read(offset) | masked;
    put(offset, value);
  }
}

void SoftApic::request(std::uint8_t vector) {
  if ((read(spurious) & software_enable) != 0) set_bit(requested, vector, true);
}

std::optional<std::uint8_t> SoftApic::pending() const {
  const auto vector = highest(requested);
  return vector && (*vector & 0xF0U) > (read(processor_priority) & 0xF0U) ? vector : std::nullopt;
}

void SoftApic::accept(std::uint8_t vector) {
  set_bit(requested, vector, false);
  set_bit(in_service, vector, true);
  update_priority();
}

std::optional<std::uint8_t> SoftApic::serving() const { return highest(in_service); }

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

// SDM 3A 10.8.3.1: the higher of the task's priority class and that of the interrupt in service.
void SoftApic::update_priority() {
  const std::uint32_t task = read(task_priority) & 0xFF;
  const std::uint32_t serving = highest(in_service).value_or(0) & 0xF0U;
  const std::uint32_t value = (task & 0xF0) >= serving ? task : serving;
  put(processor_priority, value);
}

}  // namespace vmm
