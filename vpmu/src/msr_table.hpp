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
  /// The same by address; false for an MSR that the generation lacks.
  static bool may_write(const Pmu& pmu, MsrIndex index, std::uint64_t value);
  /// Whether there are GLOBAL_CTRL, GLOBAL_STATUS and GLOBAL_OVF_CTRL. Without them a counter's own select is enough to
  /// enable it.
  static bool has_global_registers(const Pmu& pmu);
  /// The bits of GLOBAL_CTRL that exist: one per counter.
  static std::uint64_t global_ctrl_bits(const Pmu& pmu);
  /// The bits of GLOBAL_STATUS that exist: those that GLOBAL_OVF_CTRL may clear.
  static std::uint64_t global_status_bits(const Pmu& pmu);
};

/// The write functions, in msr_effects.cpp.
struct MsrEffects {
  static void write_pmc_sign_extended(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_pmc_full(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_perfevtsel(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_misc_enable(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_offcore_rsp(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_select(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_tos(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_debugctl(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_fixed_ctr(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_fixed_ctr_ctrl(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_global_ctrl(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_global_ovf_ctrl(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_global_status_set(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_pebs_enable(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_ld_lat(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_frontend(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_ds_area(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_from(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_to(Pmu& pmu, unsigned i, std::uint64_t value);
  static void write_lbr_info(Pmu& pmu, unsigned i, std::uint64_t value);
};

}  // namespace vpmu
