#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "timing/microarchitecture.hpp"
#include "uarch/profiles.hpp"

namespace vpmu::silicon {

/// What a block took.
struct BlockTime {
  double cycles{};       ///< Of one repetition.
  bool all_have_rows{};  ///< Each of its instructions has a row of its own.
};

/// Runs blocks of 64-bit code in the engine as BHive's harness ran them on CPUs: many copies one after the other, with
/// registers and memory full of one value, and each page of the address space the same page of RAM. The cycles are
/// those that a guest's counter would show.
class BlockGuest {
 public:
  BlockGuest();
  BlockGuest(const BlockGuest&) = delete;
  BlockGuest& operator=(const BlockGuest&) = delete;
  BlockGuest(BlockGuest&&) = delete;
  BlockGuest& operator=(BlockGuest&&) = delete;
  ~BlockGuest();

  /// Empty: an instruction of it does not run here.
  std::optional<BlockTime> run(std::span<const std::byte> block, const timing::Microarchitecture& on,
                               const uarch::Profile& profile);

 private:
  class Machine;
  std::unique_ptr<Machine> machine_;
};

}  // namespace vpmu::silicon
