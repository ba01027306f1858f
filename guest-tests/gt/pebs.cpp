#include "gt/pebs.hpp"

#include "gt/cpu.hpp"
#include "gt/pmu.hpp"
#include "gt/streams.hpp"

namespace gt::pebs {
namespace {

alignas(4096) constinit std::array<std::byte, 4096> area_page{};
alignas(4096) constinit std::array<std::byte, buffer_bytes> buffer_pages{};

const volatile std::uint64_t* words() { return reinterpret_cast<const volatile std::uint64_t*>(buffer_pages.data()); }

}  // namespace

std::uint64_t record_bytes() { return vpmu::record_size(cpu::pebs_format()); }

volatile ManagementArea& area() { return *reinterpret_cast<volatile ManagementArea*>(area_page.data()); }
std::byte* buffer() { return buffer_pages.data(); }

void set_up(unsigned records, unsigned threshold_records) {
  for (std::byte& b : buffer_pages) b = poison;
  const auto base = reinterpret_cast<std::uint64_t>(buffer());
  volatile ManagementArea& ds = area();
  ds.base = base;
  ds.index = base;
  ds.maximum = base + records * record_bytes();
  ds.threshold = base + threshold_records * record_bytes();
  wrmsr(pmu::msr::IA32_DS_AREA, reinterpret_cast<std::uint64_t>(area_page.data()));
}

void set_reset(unsigned counter, std::uint64_t period) {
  constexpr std::size_t first = offsetof(ManagementArea, reset) / 8;
  reinterpret_cast<volatile std::uint64_t*>(area_page.data())[first + counter] = pmu::minus(period);
}

std::uint64_t records_written() { return (area().index - area().base) / record_bytes(); }

PebsRecord record(std::uint64_t i) {
  PebsRecord out;
  const std::uint64_t slots = record_bytes() / 8;
  for (std::uint64_t s = 0; s < slots; ++s) out.value[s] = words()[i * slots + s];
  return out;
}

std::uint64_t eventing_ip(const PebsRecord& record) {
  return cpu::has_eventing_ip() ? record[Slot::eventing_ip] : instruction_before(record[Slot::rip]);
}

bool poisoned_from(std::uint64_t offset) {
  for (std::uint64_t w = offset / 8; w < buffer_bytes / 8; ++w)
    if (words()[w] != poison_word) return false;
  return true;
}

}  // namespace gt::pebs
