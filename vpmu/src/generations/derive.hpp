#pragma once
#include "vpmu/generation.hpp"

namespace vpmu::generations {

using enum Generation;

/// What is known of a generation. Each has its own here; generations.cpp makes the table of all.
template <Generation>
inline constexpr GenerationDesc description{};

/// A generation as its difference from another.
template <class Change>
constexpr GenerationDesc derive(GenerationDesc from, Change change) {
  change(from);
  return from;
}

}  // namespace vpmu::generations
