#include <bit>

#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/exchange.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

template <BitOp What, class T>
T changed(T value, T mask) {
  if constexpr (What == BitOp::bts) return static_cast<T>(value | mask);
  if constexpr (What == BitOp::btr) return static_cast<T>(value & ~mask);
  if constexpr (What == BitOp::btc) return static_cast<T>(value ^ mask);
  return value;
}

// A bit number in a register reaches beyond the operand in memory, on both sides. SDM 2A BT. CF alone changes.
template <BitOp What, class T, bool ByRegister, bool Memory, bool Locked>
void bit(const Op* op, Core* c) {
  constexpr unsigned width = 8 * sizeof(T);
  const auto number =
      ByRegister ? static_cast<std::int64_t>(static_cast<std::make_signed_t<T>>(reg<T>(c, op->s))) : op->imm;
  const T mask = static_cast<T>(T{1} << (static_cast<std::uint64_t>(number) % width));
  T value{};
  if constexpr (Memory) {
    const std::int64_t beyond =
        ByRegister ? (number >> std::countr_zero(width)) * static_cast<std::int64_t>(sizeof(T)) : 0;
    const std::uint64_t at = address(op, c) + static_cast<std::uint64_t>(beyond);
    if constexpr (Locked) {
      const Exchanged<T> e = find_to_exchange<T>(c, at);
      if (e.at == nullptr) VPMU_LEAVE(op, c);
      if constexpr (What == BitOp::bts) value = __atomic_fetch_or(e.at, mask, __ATOMIC_SEQ_CST);
      if constexpr (What == BitOp::btr) value = __atomic_fetch_and(e.at, static_cast<T>(~mask), __ATOMIC_SEQ_CST);
      if constexpr (What == BitOp::btc) value = __atomic_fetch_xor(e.at, mask, __ATOMIC_SEQ_CST);
      if (!finish(c, e)) VPMU_LEAVE(op, c);
    } else {
      if constexpr (What != BitOp::bt) {
        if (!can_store<T>(c, at)) VPMU_LEAVE(op, c);
      }
      if (!load(c, at, value)) VPMU_LEAVE(op, c);
      if constexpr (What != BitOp::bt) {
        if (!store(c, at, changed<What>(value, mask))) VPMU_LEAVE(op, c);
      }
    }
  } else {
    value = reg<T>(c, op->d);
    if constexpr (What != BitOp::bt) set_reg(c, op->d, changed<What>(value, mask));
  }
  c->flags.set_cf((value & mask) != 0);
  VPMU_NEXT(op, c);
}

// BSF and BSR of 0 leave the destination as it is: what CPUs do and AMD's manual says.
template <Scan What, class T, bool Memory>
void scan(const Op* op, Core* c) {
  T value{};
  if constexpr (Memory) {
    if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  } else {
    value = reg<T>(c, op->s);
  }
  constexpr int width = 8 * sizeof(T);
  if constexpr (What == Scan::bsf || What == Scan::bsr) {
    if (value != 0)
      set_reg(c, op->d,
              static_cast<T>(What == Scan::bsf ? std::countr_zero(value) : width - 1 - std::countl_zero(value)));
    c->flags.set_bits(value == 0 ? x86::rflags::ZF::mask : 0);  // the others are undefined
  } else if constexpr (What == Scan::popcnt) {
    set_reg(c, op->d, static_cast<T>(std::popcount(value)));
    c->flags.set_bits(value == 0 ? x86::rflags::ZF::mask : 0);
  } else {
    const auto found = static_cast<T>(What == Scan::tzcnt ? std::countr_zero(value) : std::countl_zero(value));
    set_reg(c, op->d, found);
    c->flags.set_bits((found == 0 ? x86::rflags::ZF::mask : 0) | (value == 0 ? x86::rflags::CF::mask : 0));
  }
  VPMU_NEXT(op, c);
}

template <BitOp What>
Run bit_of(bool by_register, bool memory, bool locked, unsigned bytes) {
  return by_size_above_1(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    if (!memory) return by_register ? bit<What, T, true, false, false> : bit<What, T, false, false, false>;
    if constexpr (What != BitOp::bt) {
      if (locked) return by_register ? bit<What, T, true, true, true> : bit<What, T, false, true, true>;
    }
    return by_register ? bit<What, T, true, true, false> : bit<What, T, false, true, false>;
  });
}

template <Scan What>
Run scan_of(bool memory, unsigned bytes) {
  return by_size_above_1(
      bytes, [&](auto t) { return memory ? scan<What, decltype(t), true> : scan<What, decltype(t), false>; });
}

}  // namespace

Run op_bit(BitOp what, bool by_register, bool memory, bool locked, unsigned bytes) {
  switch (what) {
    case BitOp::bt: return bit_of<BitOp::bt>(by_register, memory, locked, bytes);
    case BitOp::bts: return bit_of<BitOp::bts>(by_register, memory, locked, bytes);
    case BitOp::btr: return bit_of<BitOp::btr>(by_register, memory, locked, bytes);
    case BitOp::btc: return bit_of<BitOp::btc>(by_register, memory, locked, bytes);
  }
  return nullptr;
}

Run op_scan(Scan what, bool memory, unsigned bytes) {
  switch (what) {
    case Scan::bsf: return scan_of<Scan::bsf>(memory, bytes);
    case Scan::bsr: return scan_of<Scan::bsr>(memory, bytes);
    case Scan::tzcnt: return scan_of<Scan::tzcnt>(memory, bytes);
    case Scan::lzcnt: return scan_of<Scan::lzcnt>(memory, bytes);
    case Scan::popcnt: return scan_of<Scan::popcnt>(memory, bytes);
  }
  return nullptr;
}

}  // namespace vpmu::exec
