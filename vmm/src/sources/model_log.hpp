#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "vpmu/retirement.hpp"

namespace vmm {

/// What a model of the processor said of one instruction's access, at a moment when a record of it could be written.
struct ModelledAccess {
  std::uint64_t ip{};
  bool store{};
  vpmu::MemAccess access;
};

/// Takes each; called on vCPU threads, also of several at once. Empty: nobody wants to know.
using ModelLog = std::function<void(const ModelledAccess&)>;

/// "0x401000 load 0x10000040 l2 latency 12 stlb_miss 0".
std::string describe(const ModelledAccess& modelled);

}  // namespace vmm
