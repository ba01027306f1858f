// A whole embedding: a PMU, a guest of one page, and a source that knows each instruction. The guest profiles its loads
// precisely.
#include <array>
#include <cstdio>
#include <cstring>

#include "vpmu/pmu.hpp"

namespace {

using namespace vpmu;

constexpr GuestLinear page{0x10000};    // holds the guest's DS area and, at offset 400H, its PEBS buffer
constexpr GuestLinear code{0x40'0000};  // where the guest's loop is

/// All that the PMU may ask for. A VMM walks the guest's page tables here and talks to its interrupt controller.
class OnePageGuest final : public GuestEnv {
 public:
  AccessResult read_linear(GuestLinear at, std::span<std::byte> out) override {
    if (auto fault = probe_linear(at, out.size(), AccessKind::read)) return fault;
    std::memcpy(out.data(), memory.data() + (at.value() - page.value()), out.size());
    return {};
  }
  AccessResult write_linear(GuestLinear at, std::span<const std::byte> in) override {
    if (auto fault = probe_linear(at, in.size(), AccessKind::write)) return fault;
    std::memcpy(memory.data() + (at.value() - page.value()), in.data(), in.size());
    return {};
  }
  AccessResult probe_linear(GuestLinear at, std::uint64_t size, AccessKind) override {
    const std::uint64_t offset = at.value() - page.value();
    if (offset < memory.size() && size <= memory.size() - offset) return {};
    return AccessFault{.address = at};
  }
  std::uint64_t tsc() override { return ticks += 100; }
  void request_pmi() override { interrupted = true; }

  std::array<std::byte, page_size> memory{};
  std::uint64_t ticks{};
  bool interrupted{};
};

/// The guest's driver: a PEBS buffer for three records, an interrupt at the second, a period of four loads.
bool start_session(Pmu& pmu, OnePageGuest& guest) {
  constexpr std::uint64_t size = record_size(PebsFormat::format3);
  constexpr std::uint64_t buffer = page.value() + 0x400;
  constexpr std::uint64_t period = (0 - std::uint64_t{4}) & low_bits(48);
  const std::array<std::uint64_t, 5> area{buffer, buffer, buffer + 3 * size, buffer + 2 * size, period};
  std::memcpy(guest.memory.data() + DsArea::pebs_offset, area.data(), sizeof area);
  const auto write = [&](MsrIndex index, std::uint64_t value) { return pmu.wrmsr(index, value) == MsrStatus::ok; };
  return write(msr::IA32_DS_AREA, page.value()) && write(msr::IA32_A_PMC0, period) &&
         write(msr::IA32_PERFEVTSEL0, 0x43'81D0) &&  // MEM_INST_RETIRED.ALL_LOADS, user and kernel, enabled
         write(msr::IA32_PEBS_ENABLE, 1) && write(msr::IA32_PERF_GLOBAL_CTRL, 1);
}

}  // namespace

int main() {
  OnePageGuest guest;
  Pmu pmu{PmuConfig{.generation = Generation::skylake}};
  if (!start_session(pmu, guest)) return 1;

  // Four instructions, over and over; the second one loads. A real source asks plan() what to count and until when.
  PebsRegisters registers;
  for (unsigned step = 0; !guest.interrupted && step < 1000; ++step) {
    const unsigned slot = step % 4;
    registers[Slot::rax] = step;
    pmu.retire({.ip = code + 4 * slot,
                .next_ip = code + 4 * ((slot + 1) % 4),
                .cpl = 3,
                .has_load = slot == 1,
                .load = {.address = GuestLinear{0x7000 + 8ULL * step}, .level = HitLevel::l1, .latency = 4},
                .cycles = 1,
                .registers = &registers},
               guest);
  }

  std::array<std::byte, DsArea::pebs_bytes> raw{};
  std::memcpy(raw.data(), guest.memory.data() + DsArea::pebs_offset, raw.size());
  const DsArea area = DsArea::decode(raw);
  const std::span<const std::byte> memory{guest.memory};
  for (std::uint64_t at = area.base.value(); at < area.index.value(); at += record_size(PebsFormat::format3)) {
    const auto record = decode(PebsFormat::format3, memory.subspan(at - page.value()));
    if (!record) return 1;
    std::printf("load at %#llx read %#llx at time %llu\n",
                static_cast<unsigned long long>((*record)[Slot::eventing_ip]),
                static_cast<unsigned long long>((*record)[Slot::data_address]),
                static_cast<unsigned long long>((*record)[Slot::tsc]));
  }
  std::printf("%llu records, %llu interrupt\n", static_cast<unsigned long long>(pmu.statistics().records_written),
              static_cast<unsigned long long>(pmu.statistics().pmi_requests));
  return 0;
}
