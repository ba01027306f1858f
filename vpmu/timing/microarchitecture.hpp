#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "timing/instruction_rows.hpp"

namespace vpmu::timing {

/// Sets of execution ports in which micro-ops may crowd: those that some micro-op is for, and unions of these. A set's
/// ports together do as many micro-ops a cycle as they are.
inline constexpr std::size_t max_port_sets = 24;

/// The pipeline of a core. Where the numbers are from: Intel's Optimization Reference Manual (248966, chapter 2: of
/// each micro-architecture by its name) for widths, ports and the reorder buffer; and where it has none, as said beside
/// each, what others measured with single instructions (InstLatX64) or published (uiCA: Abel and Reineke, 2022).
struct Microarchitecture {
  RowSet rows{};
  bool is_compared{};           ///< How far the model is off is known, from blocks that were measured on such a core.
  std::uint8_t issue_width{4};  ///< Fused micro-ops that enter the back end in a cycle.
  std::uint16_t reorder_buffer{};
  std::uint8_t scheduler{};  ///< Micro-ops that wait for their operands or a port.
  std::uint8_t load_buffer{}, store_buffer{};
  std::uint8_t fill_buffers{10};  ///< Lines that may be on their way to the L1. 248966, chapter 2.
  /// Lines that may be on their way from beyond the L2. Intel's "Performance Analysis Guide for Core i7 and Xeon 5500".
  std::uint8_t super_queue{16};
  /// Page walks at the same time: one page-miss handler, and from Broadwell on two (Intel's presentation of Broadwell
  /// at IDF 2014; WALK_PENDING in Intel's event lists is "for each PMH").
  std::uint8_t page_walkers{1};

  std::uint8_t decoders{4};         ///< The first takes instructions of up to four micro-ops, the others of one.
  std::uint8_t predecode_width{5};  ///< Instructions of one 16-byte block whose length is found in a cycle. uiCA.
  std::uint8_t decoded_ahead{16};  ///< Cycles' worth of micro-ops that may wait in front of the back end: Skylake's 64.
  std::uint8_t cache_width{4};  ///< Micro-ops that come out of the micro-op cache in a cycle. 248966: six on Skylake.
  std::uint8_t cache_to_microcode{4};  ///< Cycles until microcode follows what came out of the micro-op cache. uiCA.
  /// Cycles until decoded code follows what came out of the micro-op cache: "between zero and two" by Intel's
  /// description of DSB2MITE_SWITCHES.PENALTY_CYCLES.
  std::uint8_t cache_to_decoders{1};
  bool fuses_on_last_decoder{};  ///< A compare that fuses with the branch after it may be on the last decoder. uiCA.
  std::uint8_t issue_to_dispatch{5};  ///< Cycles. uiCA.
  /// Cycles from when a mispredicted branch has executed until the first micro-op behind it is dispatched, if the
  /// micro-op cache has it; and those that decoding it takes longer. Measured by Agner Fog ("The microarchitecture of
  /// Intel, AMD and VIA CPUs": 15 and more, 15 to 20 from Haswell on) and 7-cpu.com (Skylake: 16.5, and 19 to 20).
  std::uint8_t refill{15}, decoder_refill{3};

  // Cycles of loads that hit the L1. 248966, chapter 2; LLVM's models for vectors.
  std::uint8_t load_latency{5};         ///< Into a general register.
  std::uint8_t simple_load_latency{4};  ///< The same by a base register and a displacement below 2048.
  std::uint8_t vector_load_latency{6}, wide_load_latency{7};
  /// Cycles from a store's data to those of a load of it, into a general and into a vector register. InstLatX64's pairs
  /// of a vector's store and load; a general register gets its data a cycle earlier, as from the L1.
  std::uint8_t store_forwarding{5}, vector_store_forwarding{6};
  /// Cycles from a store's retirement to the data of a load that it cannot forward to: as in the published formula of
  /// top-down analysis, 13 for each LD_BLOCKS.STORE_FORWARD.
  std::uint8_t blocked_load{13};
  /// Cycles that a load waits for a store before it whose address differs above bit 11 alone. 248966, 4-KByte aliasing.
  std::uint8_t aliased_load{7};
  std::uint8_t locked{};  ///< Cycles of an atomic access, once all before it have retired. InstLatX64.

  std::uint8_t load_ports{}, store_address_ports{}, indexed_store_address_ports{}, store_data_ports{};
  std::uint8_t alu_ports{}, fused_branch_ports{};
  std::uint8_t slow_lea_ports{};  ///< 0: none is slow.
  bool fuses_compares_only{};     ///< CMP and TEST: no other instruction fuses with a branch. 248966, macro-fusion.
  /// NOPs, and those that make a register 0, take no port. 248966, new in Sandy Bridge's renamer.
  bool renames_idioms{true};
  bool eliminates_moves{};
  bool unlaminates_all_indexed{};  ///< Any indexed address splits its micro-op at issue, not only VEX's of three
                                   ///< operands.
  bool bit_counts_wait{};          ///< LZCNT and TZCNT wait for their destination, as POPCNT does on all of these.
  std::array<std::uint8_t, max_port_sets> port_sets{};
};

extern const Microarchitecture nehalem, sandy_bridge, ivy_bridge, haswell, broadwell, skylake, skylake_sp;

}  // namespace vpmu::timing
