#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "vpmu/counter.hpp"
#include "vpmu/pebs.hpp"

namespace vpmu {

/// LBR entries of the generation that has most.
inline constexpr unsigned max_lbr_depth = 32;

/// All state of a PMU that outlives an instruction: what the guest can read, and what it cannot (armed and pending
/// assists). Plain 64-bit words, so that the bytes of a snapshot are the same for every compiler.
struct PmuState {
  std::array<std::uint64_t, max_gp_counters> perfevtsel{};
  std::array<std::uint64_t, max_gp_counters> pmc{};
  std::array<std::uint64_t, max_fixed_counters> fixed_ctr{};
  std::uint64_t fixed_ctr_ctrl{};
  std::uint64_t global_ctrl{};
  std::uint64_t global_status{};
  std::uint64_t debugctl{};
  std::uint64_t misc_enable{};
  std::uint64_t misc_feature_control{};
  std::uint64_t pebs_enable{};
  std::uint64_t ds_area{};
  std::uint64_t pebs_ld_lat_threshold{};
  std::uint64_t pebs_frontend{};
  std::array<std::uint64_t, 2> offcore_rsp{};
  std::uint64_t lbr_select{};
  std::uint64_t lbr_tos{};
  std::array<std::uint64_t, max_lbr_depth> lbr_from{};
  std::array<std::uint64_t, max_lbr_depth> lbr_to{};
  std::array<std::uint64_t, max_lbr_depth> lbr_info{};
  std::uint64_t ler_from{};
  std::uint64_t ler_to{};

  // Not readable by the guest.
  std::uint64_t armed{};             ///< CounterSet: PEBS armed (rules O4, P13).
  std::uint64_t overflowed{};        ///< CounterSet: PEBS-enabled and overflowed, not served yet (rule P6).
  std::uint64_t pmi_after_assist{};  ///< CounterSet: overflow PMI that waits for the assist (rule Q5).
  std::uint64_t pmi_waited{};        ///< Calls of settle() and retire() for which it has waited (rule Q5a).
  std::array<std::uint64_t, max_gp_counters> skid_left{};   ///< Events until an armed counter may trigger (rule P2).
  std::array<std::uint64_t, max_gp_counters> open_cycle{};  ///< Events in the cycle that has not ended (rule C4).
  std::uint64_t condition{};           ///< CounterSet: the CMASK condition held in the last cycle (EDGE, rule C4).
  std::uint64_t load_tag_countdown{};  ///< Loads until the next one is tagged (rule L11).
  std::uint64_t load_tag_random{};     ///< State of the tagging generator.
  std::uint64_t tagged_address{};      ///< 98H, A0H and A8H of the last tagged load (rule L6).
  std::uint64_t tagged_source{};
  std::uint64_t tagged_latency{};
  std::uint64_t lbr_cycles{};  ///< Cycles since the last LBR entry.
};

/// A PMU at rest, for save, restore and migration.
struct PmuSnapshot {
  static constexpr std::uint64_t current_version = 6;
  static constexpr std::uint64_t magic_value = 0x554D5056'50414E53;  // "SNAPVPMU"
  std::uint64_t magic{magic_value};
  std::uint64_t version{current_version};
  std::uint64_t generation{};  ///< enum Generation.
  std::uint64_t gp_counters{};
  PmuState state{};
};
static_assert(sizeof(PmuSnapshot) % 8 == 0);

/// Whether a snapshot was taken over, and why not.
enum class RestoreStatus : std::uint8_t {
  ok,
  wrong_magic,       ///< Not a snapshot.
  wrong_version,     ///< Made by another version of the library.
  wrong_generation,  ///< Another generation or number of counters.
  illegal_value,     ///< A register holds a value that WRMSR would refuse.
};

}  // namespace vpmu
