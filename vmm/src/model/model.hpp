#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "kvm/cpuid_table.hpp"
#include "vpmu/generation.hpp"

namespace vmm {

/// The CPUID feature words of a model: what a guest may see if KVM can give it. SDM 2A CPUID.
struct FeatureWords {
  std::uint32_t leaf_1_ecx, leaf_1_edx;
  std::uint32_t leaf_7_ebx, leaf_7_ecx, leaf_7_edx;
  std::uint32_t leaf_d_1_eax;
  std::uint32_t leaf_80000001_ecx, leaf_80000001_edx;
};

/// One cache of the model, as CPUID leaf 4 describes it.
struct CacheShape {
  enum class Kind : std::uint8_t { data = 1, instruction = 2, unified = 3 };
  enum class Shared : std::uint8_t { core, package };
  Kind kind;
  std::uint8_t level;
  std::uint32_t bytes;
  std::uint32_t ways;
  Shared shared;
  bool inclusive;
};

/// All that describes one CPU to a guest: data only. The PMU's part is in the generation's description.
struct MachineModel {
  std::string_view name;  ///< As users type it: "skylake".
  vpmu::Generation generation;
  std::string_view brand;   ///< The brand string before " @ x.xxGHz", at most 36 characters.
  std::uint32_t signature;  ///< CPUID.01H:EAX: family, model, stepping.
  std::uint32_t microcode;  ///< Revision in IA32_BIOS_SIGN_ID[63:32].
  FeatureWords features;
  CpuidRegisters leaf_2;  ///< Cache descriptors.
  std::array<CacheShape, 4> caches;
  std::uint8_t physical_bits;  ///< Width of physical addresses.
  std::uint32_t last_leaf;     ///< CPUID.0:EAX. With 15H or more, CPUID tells the clocks. SDM 2A CPUID.
};

/// The model's feature words, each in its leaf.
CpuidTable feature_table(const MachineModel& model);

/// IA32_BIOS_SIGN_ID, and what a processor of the model has there: the microcode revision is in the upper half. SDM
/// 3A 9.11.7.1.
constexpr std::uint64_t bios_sign_id(const MachineModel& model) { return std::uint64_t{model.microcode} << 32U; }

/// All models, oldest first.
std::span<const MachineModel> all_machine_models();
/// By the name users type; null when there is none.
const MachineModel* find_machine_model(std::string_view name);
/// The model that stands for a generation. Never fails: each generation has one.
const MachineModel& machine_model(vpmu::Generation generation);

}  // namespace vmm
