#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "vpmu/retirement.hpp"

namespace vmm {

/// The processor model's result for one instruction's memory access, reported where a record of it could be written.
struct ModelledAccess {
  std::uint64_t ip{};
  bool store{};
  vpmu::MemAccess access;
};

/// Receives each result, on vCPU threads, possibly several at once. Empty: no log is wanted.
using ModelLog = std::function<void(const ModelledAccess&)>;

/// "0x401000 load 0x10000040 l2 latency 12 stlb_miss 0".
std::string describe(const ModelledAccess& modelled);

}  // namespace vmm
