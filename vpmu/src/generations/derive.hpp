#pragma once
#include "vpmu/generation.hpp"

namespace vpmu::generations {

/// A generation as its difference from another.
template <class Change>
constexpr GenerationDesc derive(GenerationDesc from, Change change) {
  change(from);
  return from;
}

}  // namespace vpmu::generations
