#include "vpmu/generation.hpp"

#include "generations/skylake.hpp"

namespace vpmu {
namespace {
constexpr std::array<const GenerationDesc*, 1> generation_table{&generations::skylake};
}

const GenerationDesc& describe(Generation generation) { return *generation_table[static_cast<unsigned>(generation)]; }

std::span<const GenerationDesc* const> all_generations() { return generation_table; }

std::optional<Generation> find_generation(std::string_view name) {
  for (const GenerationDesc* desc : generation_table)
    if (desc->name == name) return desc->generation;
  return std::nullopt;
}

}  // namespace vpmu
