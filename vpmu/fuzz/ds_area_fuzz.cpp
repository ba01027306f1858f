#include <array>
#include <cstring>
#include <span>

#include "fuzz_input.hpp"
#include "paged_guest.hpp"
#include "vpmu/pmu.hpp"

// Random bytes as the guest's DS area, its pages and which of them exist. Whatever they say, a record is written whole,
// between base and absolute maximum, at the index, and nothing else in the guest changes but the index.

namespace {

using namespace vpmu;
using fuzz::require;

constexpr std::uint64_t first_page = fuzz::PagedGuest::first_page;
constexpr std::uint64_t record_bytes = record_size(PebsFormat::format3);

struct Written {
  std::uint64_t at{}, size{};
};

/// Remembers what was written.
class HostileGuest final : public fuzz::PagedGuest {
 public:
  std::array<Written, 64> writes{};
  unsigned write_count{};

 private:
  void judge(std::uint64_t at, std::span<const std::byte> in) override {
    require(write_count < writes.size(), "at most two writes for each retirement");
    writes[write_count++] = {at, in.size()};
  }
};

/// An address near the guest's RAM, or anywhere.
std::uint64_t take_address(fuzz::Input& input) {
  const auto near = input.take<std::uint16_t>();
  return (near & 0x8000) != 0 ? input.take<std::uint64_t>() : first_page + (near & 0x7FFF) - page_size;
}

void fill_area(fuzz::Input& input, HostileGuest& guest, std::uint64_t ds) {
  std::array<std::uint64_t, DsArea::pebs_bytes / 8> area{};
  for (auto& field : area) field = take_address(input);
  const std::uint64_t offset = ds + DsArea::pebs_offset - first_page;
  if (offset <= guest.memory.size() - sizeof area) std::memcpy(guest.memory.data() + offset, area.data(), sizeof area);
}

/// Checks one retirement: `before` is the DS area as it was, `writes` what happened.
void check_writes(const HostileGuest& guest, const DsArea& before, std::uint64_t ds, const PmuStatistics& statistics,
                  std::uint64_t records_before) {
  if (statistics.records_written == records_before) {
    require(guest.write_count == 0, "a dropped record changes nothing");
    return;
  }
  require(guest.write_count == 2, "a record is one write, its index another");
  const Written record = guest.writes[0];
  require(record.at == before.index.value() && record.size == record_bytes, "the record is whole and at the index");
  require(record.at >= before.base.value() && record.at + record.size <= before.absolute_maximum.value(),
          "inside the buffer");
  require(guest.writes[1].at == ds + DsArea::index_offset && guest.writes[1].size == 8,
          "the second write is the index");
}

std::uint64_t records_written = 0;

}  // namespace

extern "C" std::uint64_t fuzz_work() { return records_written; }

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input{data, size};
  HostileGuest guest;
  const auto flags = input.take<std::uint8_t>();
  Pmu pmu{PmuConfig{}};
  guest.missing = input.take<std::uint8_t>() & input.take<std::uint8_t>();
  guest.read_only = input.take<std::uint8_t>() & input.take<std::uint8_t>();
  const std::uint64_t ds = take_address(input);
  if (pmu.wrmsr(msr::IA32_DS_AREA, ds) != MsrStatus::ok) return 0;
  for (std::uint32_t i = 0; i < 4; ++i) {
    (void)pmu.wrmsr(msr::IA32_PERFEVTSEL0 + i, 0x53'81D0);
    (void)pmu.wrmsr(msr::IA32_A_PMC0 + i, low_bits(48) - (flags >> 4));
  }
  (void)pmu.wrmsr(msr::IA32_PEBS_ENABLE, input.take<std::uint8_t>() & 0xF);
  fill_area(input, guest, ds);

  for (unsigned k = 0; k < 64 && !input.empty(); ++k) {
    guest.fail_writes = input.take<std::uint8_t>() == 0xFF;
    const std::uint64_t offset = ds + DsArea::pebs_offset - first_page;
    DsArea before;
    if (offset <= guest.memory.size() - DsArea::pebs_bytes)
      before = DsArea::decode(std::span{guest.memory}.subspan(offset).first<DsArea::pebs_bytes>());
    guest.write_count = 0;
    const PmuStatistics was = pmu.statistics();
    pmu.retire({.ip = GuestLinear{0x1000}, .next_ip = GuestLinear{0x1002}, .has_load = true, .cycles = 1}, guest);
    check_writes(guest, before, ds, pmu.statistics(), was.records_written);
    if (pmu.statistics().records_written != was.records_written)
      require(guest.word(ds + DsArea::index_offset) == before.index.value() + record_bytes,
              "the index moved by one record");
  }
  require(guest.pmis == pmu.statistics().pmi_requests, "every interrupt is counted");
  records_written += pmu.statistics().records_written;
  return 0;
}
