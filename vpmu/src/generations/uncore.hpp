#pragma once
#include <array>

#include "vpmu/bits.hpp"
#include "vpmu/uncore.hpp"

/// The uncores. SDM 3C tables 35-14, 35-15, 35-20 to 35-38. On servers the uncore consists of boxes; all registers of a
/// box keep what is written to them.
namespace vpmu::generations {

inline constexpr std::uint64_t every_bit = ~0ULL;

/// Registers of boxes. Bit 22 is the enable bit of those that are event selects.
constexpr UncoreMsr boxes(std::uint32_t first, std::uint32_t last, std::string_view name) {
  return {.first = MsrIndex{first}, .count = last - first + 1, .name = name, .legal = every_bit, .starts = bit(22)};
}
/// Registers that are global to all boxes.
constexpr UncoreMsr global_registers(std::uint32_t first, std::uint32_t last, std::string_view name) {
  return {.first = MsrIndex{first}, .count = last - first + 1, .name = name, .legal = every_bit};
}

constexpr UncoreMsr fixed_counter(std::uint32_t index, std::string_view name) {
  return {.first = MsrIndex{index}, .count = 1, .name = name, .legal = low_bits(48)};
}

/// Nehalem and Westmere with one memory controller: 06_1A, 1E, 1F, 25, 2C. SDM 3B 18.8.2, figures 18-25 to 18-29.
inline constexpr std::array nehalem_uncore_msrs{
    UncoreMsr{
        .first = MsrIndex{0x391}, .count = 1, .name = "MSR_UNCORE_PERF_GLOBAL_CTRL", .legal = 0x800F'0001'0000'00FF},
    UncoreMsr{.first = MsrIndex{0x392},
              .count = 1,
              .name = "MSR_UNCORE_PERF_GLOBAL_STATUS",
              .legal = 0,
              .write = UncoreWrite::faults},
    UncoreMsr{.first = MsrIndex{0x393},
              .count = 1,
              .name = "MSR_UNCORE_PERF_GLOBAL_OVF_CTRL",
              .legal = 0xA000'0001'0000'00FF,
              .write = UncoreWrite::clears},
    fixed_counter(0x394, "MSR_UNCORE_FIXED_CTR0"),
    UncoreMsr{.first = MsrIndex{0x395}, .count = 1, .name = "MSR_UNCORE_FIXED_CTR_CTRL", .legal = 0x5},
    UncoreMsr{
        .first = MsrIndex{0x396}, .count = 1, .name = "MSR_UNCORE_ADDR_OPCODE_MATCH", .legal = 0xE000'FFFF'FFFF'FFF8},
    UncoreMsr{.first = MsrIndex{0x3B0}, .count = 8, .name = "MSR_UNCORE_PMC0", .legal = low_bits(48)},
    UncoreMsr{.first = MsrIndex{0x3C0},
              .count = 8,
              .name = "MSR_UNCORE_PERFEVTSEL0",
              .legal = 0xFFD6'FFFF,
              .transient = bit(17),
              .starts = bit(22)},
};
inline constexpr UncoreDesc nehalem_uncore{
    .msrs = nehalem_uncore_msrs,
    .clock = {.counter = MsrIndex{0x394},
              .control = MsrIndex{0x395},
              .global_ctrl = MsrIndex{0x391},
              .global_status = MsrIndex{0x392},
              .width = 48,
              .enable = bit(0),
              .interrupt = bit(2),
              .global_enable = bit(32),
              .global_enables = bit(32) | low_bits(8),
              .freeze = bit(63),
              .cores_shift = 48,
              .cores = 4,
              .overflowed = bit(32),
              .changed = bit(63),
              .pmi = bit(61),
              .ticks_per_5_tsc = 4},  // a Core i7-920: 2.13 GHz beside 2.66 GHz
};

inline constexpr std::array nehalem_ex_uncore_msrs{
    fixed_counter(0x394, "MSR_W_PMON_FIXED_CTR"),
    UncoreMsr{.first = MsrIndex{0x395}, .count = 1, .name = "MSR_W_PMON_FIXED_CTR_CTL", .legal = every_bit},
    boxes(0xC00, 0xC11, "MSR_U_PMON_GLOBAL_CTRL"),
    boxes(0xC20, 0xCFF, "MSR_B0_PMON_BOX_CTRL"),
    boxes(0xD00, 0xDFF, "MSR_C0_PMON_BOX_CTRL"),
    boxes(0xE00, 0xE5F, "MSR_R0_PMON_BOX_CTRL"),
};
/// The clock of a server, in one of its boxes. The routing of its overflow interrupt to a core is not modelled.
constexpr UncoreClock box_clock(std::uint32_t control, std::uint32_t counter, std::uint32_t global,
                                std::uint64_t enable, std::uint64_t global_enable) {
  return {.counter = MsrIndex{counter},
          .control = MsrIndex{control},
          .global_ctrl = MsrIndex{global},
          .global_status = MsrIndex{global},
          .width = 48,
          .enable = enable,
          .interrupt = 0,
          .global_enable = global_enable,
          .global_enables = 0,
          .freeze = 0,
          .cores_shift = 0,
          .cores = 0,
          .overflowed = 0,
          .changed = 0,
          .pmi = 0,
          .ticks_per_5_tsc = 5};
}
inline constexpr UncoreDesc nehalem_ex_uncore{.msrs = nehalem_ex_uncore_msrs,
                                              .clock = box_clock(0x395, 0x394, 0xC80, bit(0), bit(31))};  // the W box

/// A client's from Sandy Bridge on. SDM 3B 18.9.6, 3C tables 35-20 and 35-38.
struct ClientUncore {
  std::uint32_t global_ctrl;
  unsigned clock_width;
  unsigned boxes;
};
constexpr UncoreMsr client_selects(std::uint32_t first, std::string_view name) {
  return {.first = MsrIndex{first}, .count = 2, .name = name, .legal = 0x1FD4'FFFF, .starts = bit(22)};
}
constexpr UncoreMsr client_counters(std::uint32_t first, std::string_view name) {
  return {.first = MsrIndex{first}, .count = 2, .name = name, .legal = low_bits(44)};
}
constexpr std::array<UncoreMsr, 17> client_msrs(const ClientUncore& c) {
  return {
      UncoreMsr{.first = MsrIndex{c.global_ctrl}, .count = 1, .name = "MSR_UNC_PERF_GLOBAL_CTRL", .legal = 0xE000'001F},
      UncoreMsr{.first = MsrIndex{c.global_ctrl + 1}, .count = 1, .name = "MSR_UNC_PERF_GLOBAL_STATUS", .legal = 0xB},
      UncoreMsr{.first = MsrIndex{0x394}, .count = 1, .name = "MSR_UNC_PERF_FIXED_CTRL", .legal = 0x50'0000},
      UncoreMsr{
          .first = MsrIndex{0x395}, .count = 1, .name = "MSR_UNC_PERF_FIXED_CTR", .legal = low_bits(c.clock_width)},
      UncoreMsr{.first = MsrIndex{0x396},
                .count = 1,
                .name = "MSR_UNC_CBO_CONFIG",
                .legal = 0,
                .write = UncoreWrite::faults,
                .reset = c.boxes},
      client_counters(0x3B0, "MSR_UNC_ARB_PERFCTR0"),
      client_selects(0x3B2, "MSR_UNC_ARB_PERFEVTSEL0"),
      client_selects(0x700, "MSR_UNC_CBO_0_PERFEVTSEL0"),
      client_counters(0x706, "MSR_UNC_CBO_0_PERFCTR0"),
      client_selects(0x710, "MSR_UNC_CBO_1_PERFEVTSEL0"),
      client_counters(0x716, "MSR_UNC_CBO_1_PERFCTR0"),
      client_selects(0x720, "MSR_UNC_CBO_2_PERFEVTSEL0"),
      client_counters(0x726, "MSR_UNC_CBO_2_PERFCTR0"),
      client_selects(0x730, "MSR_UNC_CBO_3_PERFEVTSEL0"),
      client_counters(0x736, "MSR_UNC_CBO_3_PERFCTR0"),
      client_selects(0x740, "MSR_UNC_CBO_4_PERFEVTSEL0"),
      client_counters(0x746, "MSR_UNC_CBO_4_PERFCTR0"),
  };
}
constexpr UncoreDesc client_uncore(const ClientUncore& c, std::span<const UncoreMsr> msrs) {
  return {.msrs = msrs,
          .clock = {.counter = MsrIndex{0x395},
                    .control = MsrIndex{0x394},
                    .global_ctrl = MsrIndex{c.global_ctrl},
                    .global_status = MsrIndex{c.global_ctrl + 1},
                    .width = c.clock_width,
                    .enable = bit(22),
                    .interrupt = bit(20),
                    .global_enable = bit(29),
                    .global_enables = bit(29),
                    .freeze = bit(31),
                    .cores_shift = 0,
                    .cores = 5,
                    .overflowed = bit(0),
                    .changed = 0,
                    .pmi = 0,
                    .ticks_per_5_tsc = 5},
          .caches = {.select = MsrIndex{0x700},
                     .counter = MsrIndex{0x706},
                     .stride = 0x10,
                     .slices = c.boxes,
                     .arbiter_select = MsrIndex{0x3B2},
                     .arbiter_counter = MsrIndex{0x3B0},
                     .width = 44}};
}
inline constexpr ClientUncore sandy_bridge_client{.global_ctrl = 0x391, .clock_width = 48, .boxes = 4};
inline constexpr ClientUncore skylake_client{.global_ctrl = 0xE01, .clock_width = 44, .boxes = 5};
inline constexpr auto sandy_bridge_uncore_msrs = client_msrs(sandy_bridge_client);
inline constexpr auto skylake_uncore_msrs = client_msrs(skylake_client);
inline constexpr UncoreDesc sandy_bridge_uncore = client_uncore(sandy_bridge_client, sandy_bridge_uncore_msrs);
inline constexpr UncoreDesc skylake_uncore = client_uncore(skylake_client, skylake_uncore_msrs);

inline constexpr std::array sandy_bridge_ep_uncore_msrs{
    global_registers(0xC00, 0xC00, "MSR_UNC_PERF_GLOBAL_CTRL"),
    global_registers(0xC08, 0xC08, "MSR_U_PMON_UCLK_FIXED_CTL"),
    fixed_counter(0xC09, "MSR_U_PMON_UCLK_FIXED_CTR"),
    boxes(0xC10, 0xC17, "MSR_U_PMON_EVNTSEL0"),
    boxes(0xC24, 0xC39, "MSR_PCU_PMON_BOX_CTL"),
    boxes(0xD00, 0xDFF, "MSR_C0_PMON_BOX_CTL"),
};
inline constexpr UncoreDesc sandy_bridge_ep_uncore{.msrs = sandy_bridge_ep_uncore_msrs,
                                                   .clock = box_clock(0xC08, 0xC09, 0xC00, bit(22), 0)};

inline constexpr std::array haswell_ep_uncore_msrs{
    global_registers(0x700, 0x703, "MSR_PMON_GLOBAL_CTL"),
    fixed_counter(0x704, "MSR_U_PMON_UCLK_FIXED_CTR"),
    boxes(0x705, 0x747, "MSR_U_PMON_EVNTSEL0"),
    boxes(0xE00, 0xEFF, "MSR_C0_PMON_BOX_CTL"),
};
inline constexpr UncoreDesc haswell_ep_uncore{.msrs = haswell_ep_uncore_msrs,
                                              .clock = box_clock(0x703, 0x704, 0x700, bit(22), 0)};

inline constexpr std::array skylake_sp_uncore_msrs{
    UncoreMsr{.first = MsrIndex{0x300},
              .count = 1,
              .name = "MSR_CPU_BUS_NUMBER",
              .legal = 0,
              .write = UncoreWrite::faults},  // reads 0: no bus number is valid
    global_registers(0x700, 0x703, "MSR_PMON_GLOBAL_CTL"),
    fixed_counter(0x704, "MSR_U_PMON_UCLK_FIXED_CTR"),
    boxes(0x705, 0x72F, "MSR_U_PMON_EVNTSEL0"),
    boxes(0xA40, 0xAFF, "MSR_IIO_PMON_BOX_CTL"),
    boxes(0xE00, 0xFBF, "MSR_CHA_0_PMON_BOX_CTL"),
};
inline constexpr UncoreDesc skylake_sp_uncore{.msrs = skylake_sp_uncore_msrs,
                                              .clock = box_clock(0x703, 0x704, 0x700, bit(22), 0)};

}  // namespace vpmu::generations
