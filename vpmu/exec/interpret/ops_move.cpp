#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

template <class T, Form F>
[[gnu::noinline]] void mov(const Op* op, Core* c) {
  T value{};
  if constexpr (F == Form::reg_reg || F == Form::mem_reg) value = reg<T>(c, op->s);
  if constexpr (F == Form::reg_imm || F == Form::mem_imm) value = static_cast<T>(op->imm);
  if constexpr (F == Form::reg_mem) {
    if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  }
  if constexpr (F == Form::mem_reg || F == Form::mem_imm) {
    if (!store(c, address(op, c), value)) VPMU_LEAVE(op, c);
  } else {
    set_reg(c, op->d, value);
  }
  VPMU_NEXT(op, c);
}

// For memory that the TLB knows: makes no call that returns, so it needs no stack frame.
template <class T, Form F, Address From>
void fast_mov(const Op* op, Core* c) {
  const std::uint64_t at = address_of<From>(op, c);
  if constexpr (F == Form::reg_mem) {
    const std::byte* const from = read_fast<T>(c, at);
    if (from == nullptr) [[unlikely]]
      return mov<T, F>(op, c);
    set_reg(c, op->d, value_at<T>(from));
  } else {
    std::byte* const to = write_fast<T>(c, at);
    if (to == nullptr) [[unlikely]]
      return mov<T, F>(op, c);
    const T value = F == Form::mem_reg ? reg<T>(c, op->s) : static_cast<T>(op->imm);
    std::memcpy(to, &value, sizeof value);
  }
  VPMU_NEXT(op, c);
}

// The accumulator and an address of 64 bits.
template <class T, bool Store>
void mov_absolute(const Op* op, Core* c) {
  const std::uint64_t at = static_cast<std::uint64_t>(op->imm) + reg<std::uint64_t>(c, op->seg);
  T value = reg<T>(c, op->d);
  if (!(Store ? store(c, at, value) : load(c, at, value))) VPMU_LEAVE(op, c);
  if constexpr (!Store) set_reg(c, op->d, value);
  VPMU_NEXT(op, c);
}

template <class T, Address From>
void lea(const Op* op, Core* c) {
  set_reg(c, op->d, static_cast<T>(address_of<From>(op, c)));
  VPMU_NEXT(op, c);
}

template <bool Sign, class From, class To, bool Memory>
[[gnu::noinline]] void extend(const Op* op, Core* c) {
  From value{};
  if constexpr (Memory) {
    if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  } else {
    value = reg<From>(c, op->s);
  }
  if constexpr (Sign) {
    set_reg(c, op->d,
            static_cast<To>(static_cast<std::make_signed_t<To>>(static_cast<std::make_signed_t<From>>(value))));
  } else {
    set_reg(c, op->d, static_cast<To>(value));
  }
  VPMU_NEXT(op, c);
}

template <bool Sign, class From, class To>
void fast_extend(const Op* op, Core* c) {
  const std::byte* const from = read_fast<From>(c, address(op, c));
  if (from == nullptr) [[unlikely]]
    return extend<Sign, From, To, true>(op, c);
  const From value = value_at<From>(from);
  // NOLINTNEXTLINE(bugprone-signed-char-misuse): the sign is meant
  const auto wide = static_cast<std::make_signed_t<To>>(static_cast<std::make_signed_t<From>>(value));
  set_reg(c, op->d, Sign ? static_cast<To>(wide) : static_cast<To>(value));
  VPMU_NEXT(op, c);
}

// The load happens, and may fault, whatever the condition; and a 32-bit register loses its upper half. SDM 2A CMOV.
template <unsigned CC, class T, bool Memory>
void cmov(const Op* op, Core* c) {
  if (!c->flags.is_handy()) [[unlikely]]
    return materialize_first(op, c);
  T value{};
  if constexpr (Memory) {
    if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  } else {
    value = reg<T>(c, op->s);
  }
  set_reg(c, op->d, c->flags.holds<CC>() ? value : reg<T>(c, op->d));
  VPMU_NEXT(op, c);
}

template <unsigned CC, bool Memory>
void setcc(const Op* op, Core* c) {
  if (!c->flags.is_handy()) [[unlikely]]
    return materialize_first(op, c);
  const std::uint8_t value = c->flags.holds<CC>() ? 1 : 0;
  if constexpr (Memory) {
    if (!store(c, address(op, c), value)) VPMU_LEAVE(op, c);
  } else {
    set_reg(c, op->d, value);
  }
  VPMU_NEXT(op, c);
}

template <class T>
void xchg(const Op* op, Core* c) {
  const T a = reg<T>(c, op->d);
  const T b = reg<T>(c, op->s);
  set_reg(c, op->d, b);
  set_reg(c, op->s, a);
  VPMU_NEXT(op, c);
}

// Undefined, and 0 on CPUs. SDM 2A BSWAP.
void bswap16(const Op* op, Core* c) {
  set_reg(c, op->d, std::uint16_t{});
  VPMU_NEXT(op, c);
}
void bswap32(const Op* op, Core* c) {
  set_reg(c, op->d, __builtin_bswap32(reg<std::uint32_t>(c, op->d)));
  VPMU_NEXT(op, c);
}
void bswap64(const Op* op, Core* c) {
  set_reg(c, op->d, __builtin_bswap64(reg<std::uint64_t>(c, op->d)));
  VPMU_NEXT(op, c);
}

template <class Half, class T>
void widen(const Op* op, Core* c) {
  const auto half = static_cast<std::make_signed_t<Half>>(reg<Half>(c, rax * 8));
  set_reg(c, rax * 8, static_cast<T>(static_cast<std::make_signed_t<T>>(half)));
  VPMU_NEXT(op, c);
}

template <class T>
void sign_to_d(const Op* op, Core* c) {
  const bool negative = static_cast<std::make_signed_t<T>>(reg<T>(c, rax * 8)) < 0;
  set_reg(c, rdx * 8, static_cast<T>(negative ? ~T{0} : T{0}));
  VPMU_NEXT(op, c);
}

void nop(const Op* op, Core* c) { VPMU_NEXT(op, c); }

template <class T, Form F>
Run mov_memory(Address address) {
  if constexpr (sizeof(T) != 2) {
    if (address == Address::base) return fast_mov<T, F, Address::base>;
    if (address == Address::base_and_index) return fast_mov<T, F, Address::base_and_index>;
  }
  return mov<T, F>;
}

template <class T>
Run mov_of_form(Form form, Address address) {
  switch (form) {
    case Form::reg_reg: return mov<T, Form::reg_reg>;
    case Form::reg_imm: return mov<T, Form::reg_imm>;
    case Form::reg_mem: return mov_memory<T, Form::reg_mem>(address);
    case Form::mem_reg: return mov_memory<T, Form::mem_reg>(address);
    case Form::mem_imm: return mov_memory<T, Form::mem_imm>(address);
  }
  return nullptr;
}

template <bool Sign, class From, class To, bool Memory>
Run extend_from() {
  if constexpr (Memory && sizeof(To) >= 4) return fast_extend<Sign, From, To>;
  return extend<Sign, From, To, Memory>;
}

template <bool Sign, bool Memory>
Run extend_of(unsigned from, unsigned to) {
  return by_size_above_1(to, [&](auto t) -> Run {
    using To = decltype(t);
    if (from == 1) return extend_from<Sign, std::uint8_t, To, Memory>();
    if (from == 2 && to >= 2) return extend_from<Sign, std::uint16_t, To, Memory>();
    if (from == 4 && to >= 4) return extend_from<Sign, std::uint32_t, To, Memory>();
    return nullptr;
  });
}

// SDM 2B XLAT: the op's address is RBX's; what is added wraps as addresses do.
void xlat(const Op* op, Core* c) {
  const std::uint64_t offset = (c->r[rbx] + reg<std::uint8_t>(c, rax * 8)) & address_mask(*op);
  std::uint8_t value{};
  if (!load(c, linear_address(*op, offset + reg<std::uint64_t>(c, op->seg)), value)) VPMU_LEAVE(op, c);
  set_reg(c, rax * 8, value);
  VPMU_NEXT(op, c);
}

}  // namespace

Run op_mov(Form form, unsigned bytes, Address address) {
  return by_size(bytes, [&](auto t) { return mov_of_form<decltype(t)>(form, address); });
}

Run op_mov_absolute(bool store, unsigned bytes) {
  return by_size(bytes,
                 [&](auto t) { return store ? mov_absolute<decltype(t), true> : mov_absolute<decltype(t), false>; });
}

Run op_xlat() { return xlat; }
Run op_lea(unsigned bytes, Address address) {
  return by_size_above_1(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (address) {
      case Address::base: return lea<T, Address::base>;
      case Address::base_and_index: return lea<T, Address::base_and_index>;
      case Address::any: return lea<T, Address::any>;
    }
    return nullptr;
  });
}

Run op_extend(bool sign, bool memory, unsigned from, unsigned to) {
  if (sign) return memory ? extend_of<true, true>(from, to) : extend_of<true, false>(from, to);
  return memory ? extend_of<false, true>(from, to) : extend_of<false, false>(from, to);
}

Run op_cmov(unsigned condition, bool memory, unsigned bytes) {
  return by_condition(condition, [&](auto cc) {
    return by_size_above_1(
        bytes, [&](auto t) { return memory ? cmov<cc(), decltype(t), true> : cmov<cc(), decltype(t), false>; });
  });
}

Run op_setcc(unsigned condition, bool memory) {
  return by_condition(condition, [&](auto cc) { return memory ? setcc<cc(), true> : setcc<cc(), false>; });
}

Run op_xchg_registers(unsigned bytes) {
  return by_size(bytes, [](auto t) { return xchg<decltype(t)>; });
}

Run op_bswap(unsigned bytes) { return bytes == 8 ? bswap64 : bytes == 4 ? bswap32 : bswap16; }

Run op_widen_accumulator(unsigned bytes) {
  switch (bytes) {
    case 2: return widen<std::uint8_t, std::uint16_t>;
    case 4: return widen<std::uint16_t, std::uint32_t>;
    case 8: return widen<std::uint32_t, std::uint64_t>;
    default: return nullptr;
  }
}

Run op_sign_to_d(unsigned bytes) {
  return by_size_above_1(bytes, [](auto t) { return sign_to_d<decltype(t)>; });
}

Run op_nop() { return nop; }

}  // namespace vpmu::exec
