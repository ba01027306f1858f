#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

#include "small_machine.hpp"
#include "timing/microarchitecture.hpp"
#include "uarch/profiles.hpp"

namespace vpmu::silicon {

/// In which order a chain of loads goes through its memory.
enum class ChainOrder : std::uint8_t {
  linear_forward,
  linear_backward,
  page_random,  ///< Any within 2 MiB, and these in their order.
  random_full,
};
/// By its name, as above.
std::optional<ChainOrder> chain_order(std::string_view name);

/// Loads of which each one's address comes from the one before it: as many as there are strides in the memory, which is
/// in pages of 4 KiB. Measured in their second round.
class ChainGuest {
 public:
  static constexpr std::uint64_t window = 2ULL << 20, max_bytes = 128ULL << 20;

  ChainGuest();
  /// The cycles of one load, as a guest's counter would show them. Empty: there is no such chain, or it did not run.
  std::optional<double> run(ChainOrder order, std::uint64_t bytes, std::uint64_t stride,
                            const timing::Microarchitecture& on, const uarch::Profile& profile);

 private:
  SmallMachine machine_;
};

}  // namespace vpmu::silicon
