#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

template <class T>
constexpr unsigned width = 8 * sizeof(T);
template <class T>
constexpr bool top(T value) {
  return (value >> (width<T> - 1) & 1) != 0;
}

// Where the manual leaves OF or AF undefined (OF for counts above 1, AF always), they are as for a last shift by 1, and
// 0.
template <Shift What, class T>
VPMU_PART_OF_OP T shifted(LazyFlags& flags, T a, unsigned count) {
  const auto bit_out = [&](unsigned n) { return n < width<T> && (a >> n & 1) != 0; };
  if constexpr (What == Shift::shl) {
    const T r = count < width<T> ? static_cast<T>(a << count) : T{0};
    const bool out = count <= width<T> && bit_out(width<T> - count);
    flags.set_shift(r, out, top(r) != out);
    return r;
  } else if constexpr (What == Shift::shr) {
    const T r = count < width<T> ? static_cast<T>(a >> count) : T{0};
    flags.set_shift(r, bit_out(count - 1), count == 1 && top(a));
    return r;
  } else {
    const auto s = static_cast<std::make_signed_t<T>>(a);
    const unsigned max = std::min(count, width<T> - 1);
    const T r = static_cast<T>(s >> max);
    flags.set_shift(r, count >= width<T> ? s < 0 : bit_out(count - 1), false);
    return r;
  }
}

template <Shift What, class T>
T rotated(LazyFlags& flags, T a, unsigned count) {
  const unsigned n = count % width<T>;
  if constexpr (What == Shift::rol) {
    const T r = n == 0 ? a : static_cast<T>(a << n | a >> (width<T> - n));
    flags.set_cf_of((r & 1) != 0, top(r) != ((r & 1) != 0));
    return r;
  } else {
    const T r = n == 0 ? a : static_cast<T>(a >> n | a << (width<T> - n));
    flags.set_cf_of(top(r), top(r) != top(static_cast<T>(r << 1)));
    return r;
  }
}

template <Shift What, class T>
T rotated_through_carry(LazyFlags& flags, T a, unsigned count) {
  bool carry = flags.cf();
  for (unsigned n = count % (width<T> + 1); n > 0; --n) {
    if constexpr (What == Shift::rcl) {
      const bool out = top(a);
      a = static_cast<T>(a << 1 | (carry ? 1 : 0));
      carry = out;
    } else {
      const bool out = (a & 1) != 0;
      a = static_cast<T>(a >> 1 | static_cast<T>(T{carry} << (width<T> - 1)));
      carry = out;
    }
  }
  const bool overflow = What == Shift::rcl ? top(a) != carry : top(a) != top(static_cast<T>(a << 1));
  flags.set_cf_of(carry, overflow);
  return a;
}

/// `count` is masked and not 0.
template <Shift What, class T>
VPMU_PART_OF_OP T shift_by(LazyFlags& flags, T a, unsigned count) {
  if constexpr (What == Shift::rol || What == Shift::ror) return rotated<What>(flags, a, count);
  if constexpr (What == Shift::rcl || What == Shift::rcr) return rotated_through_carry<What>(flags, a, count);
  return shifted<What>(flags, a, count);
}

// A count of 0 changes no flag; a 32-bit register and memory are written all the same. SDM 2B SAL/SAR/SHL/SHR.
template <Shift What, class T, bool ByCl, bool Memory>
void shift(const Op* op, Core* c) {
  const unsigned count =
      (ByCl ? reg<std::uint8_t>(c, rcx * 8) : static_cast<unsigned>(op->imm)) & (sizeof(T) == 8 ? 63U : 31U);
  if constexpr (Memory) {
    const std::uint64_t at = address(op, c);
    T a{};
    if (!can_store<T>(c, at) || !load(c, at, a)) VPMU_LEAVE(op, c);
    if (!store(c, at, count == 0 ? a : shift_by<What>(c->flags, a, count))) VPMU_LEAVE(op, c);
  } else {
    const T a = reg<T>(c, op->d);
    set_reg(c, op->d, count == 0 ? a : shift_by<What>(c->flags, a, count));
  }
  VPMU_NEXT(op, c);
}

template <bool Left, class T, bool ByCl, bool Memory>
void double_shift(const Op* op, Core* c) {
  const unsigned count =
      (ByCl ? reg<std::uint8_t>(c, rcx * 8) : static_cast<unsigned>(op->imm)) & (sizeof(T) == 8 ? 63U : 31U);
  if (count >= width<T>) return leave_for(op, c, Stop::unsupported);  // undefined
  T a{};
  const std::uint64_t at = Memory ? address(op, c) : 0;
  if constexpr (Memory) {
    if (!can_store<T>(c, at) || !load(c, at, a)) VPMU_LEAVE(op, c);
  } else {
    a = reg<T>(c, op->d);
  }
  T r = a;
  if (count != 0) {
    const T b = reg<T>(c, op->s);
    r = Left ? static_cast<T>(a << count | b >> (width<T> - count))
             : static_cast<T>(a >> count | b << (width<T> - count));
    const bool out = (a >> (Left ? width<T> - count : count - 1) & 1) != 0;
    c->flags.set_shift(r, out, top(r) != top(a));
  }
  if constexpr (Memory) {
    if (!store(c, at, r)) VPMU_LEAVE(op, c);
  } else {
    set_reg(c, op->d, r);
  }
  VPMU_NEXT(op, c);
}

template <Shift What>
Run of_kind(bool by_cl, bool memory, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    using T = decltype(t);
    if (by_cl) return memory ? shift<What, T, true, true> : shift<What, T, true, false>;
    return memory ? shift<What, T, false, true> : shift<What, T, false, false>;
  });
}

template <bool Left>
Run double_of(bool by_cl, bool memory, unsigned bytes) {
  return by_size_above_1(bytes, [&](auto t) {
    using T = decltype(t);
    if (by_cl) return memory ? double_shift<Left, T, true, true> : double_shift<Left, T, true, false>;
    return memory ? double_shift<Left, T, false, true> : double_shift<Left, T, false, false>;
  });
}

}  // namespace

Run op_shift(Shift what, bool by_cl, bool memory, unsigned bytes) {
  switch (what) {
    case Shift::rol: return of_kind<Shift::rol>(by_cl, memory, bytes);
    case Shift::ror: return of_kind<Shift::ror>(by_cl, memory, bytes);
    case Shift::rcl: return of_kind<Shift::rcl>(by_cl, memory, bytes);
    case Shift::rcr: return of_kind<Shift::rcr>(by_cl, memory, bytes);
    case Shift::shl: return of_kind<Shift::shl>(by_cl, memory, bytes);
    case Shift::shr: return of_kind<Shift::shr>(by_cl, memory, bytes);
    case Shift::sar: return of_kind<Shift::sar>(by_cl, memory, bytes);
  }
  return nullptr;
}

Run op_double_shift(bool left, bool by_cl, bool memory, unsigned bytes) {
  return left ? double_of<true>(by_cl, memory, bytes) : double_of<false>(by_cl, memory, bytes);
}

}  // namespace vpmu::exec
