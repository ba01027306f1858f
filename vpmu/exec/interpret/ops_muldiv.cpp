#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

__extension__ using Unsigned128 = unsigned __int128;
__extension__ using Signed128 = __int128;

/// The type with twice the bits.
template <class T>
struct Twice;
template <>
struct Twice<std::uint8_t> {
  using Unsigned = std::uint16_t;
  using Signed = std::int16_t;
};
template <>
struct Twice<std::uint16_t> {
  using Unsigned = std::uint32_t;
  using Signed = std::int32_t;
};
template <>
struct Twice<std::uint32_t> {
  using Unsigned = std::uint64_t;
  using Signed = std::int64_t;
};
template <>
struct Twice<std::uint64_t> {
  using Unsigned = Unsigned128;
  using Signed = Signed128;
};

template <class T, bool Memory>
bool source(const Op* op, Core* c, T& value) {
  if constexpr (Memory) return load(c, address(op, c), value);
  value = reg<T>(c, op->s);
  return true;
}

/// The double-width accumulator: AX, DX:AX, EDX:EAX or RDX:RAX.
template <class T>
typename Twice<T>::Unsigned accumulator(const Core* c) {
  if constexpr (sizeof(T) == 1) return reg<std::uint16_t>(c, rax * 8);
  using Wide = typename Twice<T>::Unsigned;
  return static_cast<Wide>(static_cast<Wide>(reg<T>(c, rdx * 8)) << (8 * sizeof(T)) | reg<T>(c, rax * 8));
}
template <class T>
void set_accumulator(Core* c, T low, T high) {
  if constexpr (sizeof(T) == 1) {
    set_reg(c, rax * 8, static_cast<std::uint16_t>(low | high << 8));
  } else {
    set_reg(c, rax * 8, low);
    set_reg(c, rdx * 8, high);
  }
}

// CF and OF tell whether the upper half matters; the other flags are undefined and stay.
template <bool Sign, class T, bool Memory>
void multiply(const Op* op, Core* c) {
  T b{};
  if (!source<T, Memory>(op, c, b)) VPMU_LEAVE(op, c);
  const T a = reg<T>(c, rax * 8);
  T low{};
  T high{};
  bool matters{};
  if constexpr (Sign) {
    using Wide = typename Twice<T>::Signed;
    const Wide product = static_cast<Wide>(static_cast<Wide>(static_cast<std::make_signed_t<T>>(a)) *
                                           static_cast<Wide>(static_cast<std::make_signed_t<T>>(b)));
    low = static_cast<T>(product);
    high = static_cast<T>(product >> (8 * sizeof(T)));
    matters = product != static_cast<Wide>(static_cast<std::make_signed_t<T>>(low));
  } else {
    using Wide = typename Twice<T>::Unsigned;
    const Wide product = static_cast<Wide>(static_cast<Wide>(a) * b);
    low = static_cast<T>(product);
    high = static_cast<T>(product >> (8 * sizeof(T)));
    matters = high != 0;
  }
  set_accumulator(c, low, high);
  c->flags.set_cf_of(matters, matters);
  VPMU_NEXT(op, c);
}

// #DE where the quotient does not fit.
template <bool Sign, class T, bool Memory>
void divide(const Op* op, Core* c) {
  T b{};
  if (!source<T, Memory>(op, c, b)) VPMU_LEAVE(op, c);
  if (b == 0) return leave_for(op, c, Stop::fault);
  const auto a = accumulator<T>(c);
  if constexpr (Sign) {
    using Wide = typename Twice<T>::Signed;
    const auto dividend = static_cast<Wide>(a);
    // NOLINTNEXTLINE(bugprone-signed-char-misuse): the sign is meant
    const auto divisor = static_cast<Wide>(static_cast<std::make_signed_t<T>>(b));
    const bool min = static_cast<typename Twice<T>::Unsigned>(a << 1) == 0 && dividend < 0;
    if (min && divisor == -1) return leave_for(op, c, Stop::fault);
    const auto quotient = static_cast<Wide>(dividend / divisor);
    if (quotient != static_cast<Wide>(static_cast<std::make_signed_t<T>>(quotient)))
      return leave_for(op, c, Stop::fault);
    set_accumulator(c, static_cast<T>(quotient), static_cast<T>(dividend % divisor));
  } else {
    const auto quotient = static_cast<typename Twice<T>::Unsigned>(a / b);
    if (quotient >> (8 * sizeof(T)) != 0) return leave_for(op, c, Stop::fault);
    set_accumulator(c, static_cast<T>(quotient), static_cast<T>(a % b));
  }
  VPMU_NEXT(op, c);
}

// CF and OF as above; the others are undefined.
template <class T, bool Memory, bool Immediate>
void multiply_two(const Op* op, Core* c) {
  T b{};
  if (!source<T, Memory>(op, c, b)) VPMU_LEAVE(op, c);
  using Wide = typename Twice<T>::Signed;
  const T a = Immediate ? static_cast<T>(op->imm) : reg<T>(c, op->d);
  const Wide product = static_cast<Wide>(static_cast<Wide>(static_cast<std::make_signed_t<T>>(a)) *
                                         static_cast<Wide>(static_cast<std::make_signed_t<T>>(b)));
  const auto low = static_cast<T>(product);
  const bool matters = product != static_cast<Wide>(static_cast<std::make_signed_t<T>>(low));
  set_reg(c, op->d, low);
  c->flags.set_shift(low, matters, matters);
  VPMU_NEXT(op, c);
}

}  // namespace

Run op_multiply(bool is_signed, bool memory, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    using T = decltype(t);
    if (is_signed) return memory ? multiply<true, T, true> : multiply<true, T, false>;
    return memory ? multiply<false, T, true> : multiply<false, T, false>;
  });
}

Run op_divide(bool is_signed, bool memory, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    using T = decltype(t);
    if (is_signed) return memory ? divide<true, T, true> : divide<true, T, false>;
    return memory ? divide<false, T, true> : divide<false, T, false>;
  });
}

Run op_multiply_two(bool memory, bool immediate, unsigned bytes) {
  return by_size_above_1(bytes, [&](auto t) {
    using T = decltype(t);
    if (memory) return immediate ? multiply_two<T, true, true> : multiply_two<T, true, false>;
    return immediate ? multiply_two<T, false, true> : multiply_two<T, false, false>;
  });
}

}  // namespace vpmu::exec
