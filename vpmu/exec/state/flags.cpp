#include "exec/state/flags.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

/// ZF, SF and PF of a result.
std::uint64_t flags_of(std::uint64_t result, unsigned shift) {
  const std::uint64_t top = result << shift;
  return (top == 0 ? x86::rflags::ZF::mask : 0) | ((top >> 63) != 0 ? x86::rflags::SF::mask : 0) |
         ((std::popcount(result & 0xFFU) & 1) == 0 ? x86::rflags::PF::mask : 0);
}
std::uint64_t flags_if(bool carry, bool overflow, bool aux) {
  return (carry ? x86::rflags::CF::mask : 0) | (overflow ? x86::rflags::OF::mask : 0) |
         (aux ? x86::rflags::AF::mask : 0);
}

}  // namespace

// SDM 1 appendix A, and volume 2 under each instruction.
std::uint64_t LazyFlags::bits() const {
  constexpr std::uint64_t top_bit = 1ULL << 63;
  const std::uint64_t a = a_ << shift_;
  const std::uint64_t b = b_ << shift_;
  switch (how_) {
    case How::bits: return a_;
    case How::sub: {
      const std::uint64_t d = a_ - b_;
      return flags_of(d, shift_) |
             flags_if(a < b, ((a ^ b) & (a ^ d << shift_) & top_bit) != 0, ((a_ ^ b_ ^ d) >> 4 & 1) != 0);
    }
    case How::add: {
      const std::uint64_t sum = a_ + b_;
      return flags_of(sum, shift_) |
             flags_if(a + b < a, (~(a ^ b) & (a ^ (a + b)) & top_bit) != 0, ((a_ ^ b_ ^ sum) >> 4 & 1) != 0);
    }
    case How::inc: return flags_of(a_, shift_) | flags_if(b_ != 0, a == top_bit, (a_ & 0xF) == 0);
    case How::dec: return flags_of(a_, shift_) | flags_if(b_ != 0, a == top_bit - (1ULL << shift_), (a_ & 0xF) == 0xF);
    case How::given: return flags_of(a_, shift_) | flags_if((b_ & 1) != 0, (b_ & 2) != 0, false);
  }
  return 0;
}

}  // namespace vpmu::exec
