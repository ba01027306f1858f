#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "vpmu/msr.hpp"
#include "vpmu/pmu.hpp"

namespace vpmu {

/// One kind of MSR: identity and legality. What a write changes beyond its own bits is in MsrEffects.
struct MsrRow {
  MsrIndex first;
  std::uint32_t span;  ///< Addresses of the kind, present or not.
  std::string_view name;
  /// Whether the generation has the MSR at all; if not, the PMU does not know it.
  bool (*exists)(const GenerationDesc&);
  /// How many of `span` exist on this PMU; the rest raise #GP.
  unsigned (*present)(const Pmu&);
  /// The bits that WRMSR may set; any other raises #GP.
  std::uint64_t (*legal)(const Pmu&);
  std::uint64_t (*read)(const Pmu&, unsigned i);
  /// Null: read only, WRMSR raises #GP.
  void (*write)(Pmu&, unsigned i, std::uint64_t value);
  /// A further check of the value; null: `legal` is enough.
  bool (*accepts)(const Pmu&, std::uint64_t value);
};

struct MsrTable {
  /// All rows, ascending by address.
  static std::span<const MsrRow> rows();
  /// The row of an address that this generation has, or null.
  static const MsrRow* find(const GenerationDesc& generation, MsrIndex index);
  /// Whether WRMSR of `value` is legal.
  static bool legal(const MsrRow& row, const Pmu& pmu, std::uint64_t value);
  /// Whether there are GLOBAL_CTRL, GLOBAL_STATUS and GLOBAL_OVF_CTRL. Without them a counter's own select is enough to
  /// enable it.
  static bool has_global_registers(const Pmu& pmu);
  /// The bits of GLOBAL_CTRL that exist: one per counter.
  static std::uint64_t global_ctrl_bits(const Pmu& pmu);
  /// The bits of GLOBAL_STATUS that exist: those that GLOBAL_OVF_CTRL may clear.
  static std::uint64_t global_status_bits(const Pmu& pmu);
};

/// A register, or of an array of them the i-th.
template <class Registers>
constexpr auto& element_of(Registers& registers, [[maybe_unused]] unsigned i) {
  if constexpr (requires { registers[i]; })
    return registers[i];
  else
    return registers;
}

/// The write functions; those that do more than store the value are in msr_effects.cpp.
struct MsrEffects {
  /// Stores a member of the state, or of an array of them the one at the address.
  ///
  /// That is all for the registers that control counters, too. Stopping them does not disarm (P20, Z8) and does not
  /// clear status (O6). A counter that is armed when its bit of IA32_PEBS_ENABLE is cleared stays armed, and triggers
  /// once the bit is set again (P20): Linux clears and sets the register around each change of its events, and relies
  /// on the assist to reload the counters, so that a disarmed counter would run on for 2^48 events. IA32_DS_AREA is
  /// read at the assist: an unmapped address is accepted and fails there (F9).
  template <auto Member>
  static void write(Pmu& pmu, unsigned i, std::uint64_t value) {
    element_of(pmu.state_.*Member, i) = value;
  }
  static void write_pmc_sign_extended(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_pmc_full(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_perfevtsel(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_misc_enable(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_fixed_ctr(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_global_ovf_ctrl(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_global_status_set(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_info(Pmu& pmu, unsigned i, std::uint64_t value);
};

}  // namespace vpmu
