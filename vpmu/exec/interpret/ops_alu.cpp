#include "exec/interpret/alu.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

// The general op: every form, and every access.
template <Alu What, class T, Form F>
[[gnu::noinline]] void alu(const Op* op, Core* c) {
  constexpr bool to_memory = F == Form::mem_reg || F == Form::mem_imm;
  T a{};
  T b{};
  const std::uint64_t at = to_memory ? address(op, c) : 0;
  if constexpr (to_memory) {
    if constexpr (writes<What>) {
      if (!can_store<T>(c, at)) VPMU_LEAVE(op, c);
    }
    if (!load(c, at, a)) VPMU_LEAVE(op, c);
  } else {
    a = reg<T>(c, op->d);
  }
  if constexpr (F == Form::reg_reg || F == Form::mem_reg) b = reg<T>(c, op->s);
  if constexpr (F == Form::reg_imm || F == Form::mem_imm) b = static_cast<T>(op->imm);
  if constexpr (F == Form::reg_mem) {
    if (!load(c, address(op, c), b)) VPMU_LEAVE(op, c);
  }
  const T result = compute<What>(c->flags, a, b);
  if constexpr (writes<What>) {
    if constexpr (to_memory) {
      if (!store(c, at, result)) VPMU_LEAVE(op, c);
    } else {
      set_reg(c, op->d, result);
    }
  }
  VPMU_NEXT(op, c);
}

// For memory that the TLB knows: makes no call that returns, so it needs no stack frame.
template <Alu What, class T, Form F, Address From>
void fast_alu(const Op* op, Core* c) {
  constexpr bool changes_memory = F != Form::reg_mem && writes<What>;
  const std::uint64_t at = address_of<From>(op, c);
  if constexpr (changes_memory) {
    std::byte* const to = write_fast<T>(c, at);
    if (to == nullptr) [[unlikely]]
      return alu<What, T, F>(op, c);
    const T b = F == Form::mem_reg ? reg<T>(c, op->s) : static_cast<T>(op->imm);
    const T result = compute<What>(c->flags, value_at<T>(to), b);
    std::memcpy(to, &result, sizeof result);
  } else {
    const std::byte* const from = read_fast<T>(c, at);
    if (from == nullptr) [[unlikely]]
      return alu<What, T, F>(op, c);
    const T m = value_at<T>(from);
    const T a = F == Form::reg_mem ? reg<T>(c, op->d) : m;
    const T b = F == Form::reg_mem ? m : F == Form::mem_reg ? reg<T>(c, op->s) : static_cast<T>(op->imm);
    const T result = compute<What>(c->flags, a, b);
    if constexpr (writes<What>) set_reg(c, op->d, result);
  }
  VPMU_NEXT(op, c);
}

// The comparison and the conditional branch after it. The branch also stays there as an op of its own, for those who
// need that.
template <Alu What, class T, Form F, unsigned CC>
void compare_and_jump(const Op* op, Core* c) {
  T a = reg<T>(c, op->d);
  T b{};
  if constexpr (F == Form::reg_reg) b = reg<T>(c, op->s);
  if constexpr (F == Form::reg_imm) b = static_cast<T>(op->imm);
  if constexpr (F == Form::reg_mem || F == Form::mem_reg || F == Form::mem_imm) {
    const std::byte* const from = read_fast<T>(c, address(op, c));
    if (from == nullptr) [[unlikely]]
      return alu<What, T, F>(op, c);
    const T m = value_at<T>(from);
    if constexpr (F == Form::reg_mem) {
      b = m;
    } else {
      a = m;
      b = F == Form::mem_reg ? reg<T>(c, op->s) : static_cast<T>(op->imm);
    }
  }
  compute<What>(c->flags, a, b);
  if constexpr (What == Alu::test) {
    a &= b;
    b = 0;
  }
  if (LazyFlags::after_sub<CC>(LazyFlags::extend(a), LazyFlags::extend(b), LazyFlags::shift<T>)) return go(c, 0);
  return go(c, 1);
}

template <Unary What, class T, bool Memory>
void unary(const Op* op, Core* c) {
  if constexpr (Memory) {
    const std::uint64_t at = address(op, c);
    T a{};
    if (!can_store<T>(c, at) || !load(c, at, a)) VPMU_LEAVE(op, c);
    if (!store(c, at, compute<What>(c->flags, a))) VPMU_LEAVE(op, c);
  } else if constexpr (What == Unary::inc || What == Unary::dec) {
    if (!c->flags.knows_cf()) [[unlikely]]
      return materialize_first(op, c);
    set_reg(c, op->d, compute<What>(c->flags, reg<T>(c, op->d), c->flags.known_cf()));
  } else {
    set_reg(c, op->d, compute<What>(c->flags, reg<T>(c, op->d)));
  }
  VPMU_NEXT(op, c);
}

template <Alu What, class T, Form F>
Run with_memory(Address address) {
  // The small sizes are rare, except in comparisons.
  constexpr bool reads_cf = What == Alu::adc || What == Alu::sbb;
  if constexpr (!reads_cf && (sizeof(T) >= 4 || (sizeof(T) == 1 && !writes<What>))) {
    if (address == Address::base) return fast_alu<What, T, F, Address::base>;
    if (address == Address::base_and_index) return fast_alu<What, T, F, Address::base_and_index>;
  }
  return alu<What, T, F>;
}

template <Alu What, class T>
Run of_form(Form form, Address address) {
  switch (form) {
    case Form::reg_reg: return alu<What, T, Form::reg_reg>;
    case Form::reg_imm: return alu<What, T, Form::reg_imm>;
    case Form::reg_mem: return with_memory<What, T, Form::reg_mem>(address);
    case Form::mem_reg: return with_memory<What, T, Form::mem_reg>(address);
    case Form::mem_imm: return with_memory<What, T, Form::mem_imm>(address);
  }
  return nullptr;
}

template <Alu What>
Run of_size(Form form, unsigned bytes, Address address) {
  return by_size(bytes, [&](auto t) { return of_form<What, decltype(t)>(form, address); });
}

template <Alu What, class T, unsigned CC>
Run jump_of(Form form) {
  switch (form) {
    case Form::reg_reg: return compare_and_jump<What, T, Form::reg_reg, CC>;
    case Form::reg_imm: return compare_and_jump<What, T, Form::reg_imm, CC>;
    case Form::mem_imm: return compare_and_jump<What, T, Form::mem_imm, CC>;
    case Form::reg_mem:
    case Form::mem_reg: break;
  }
  if constexpr (What == Alu::cmp)
    return form == Form::reg_mem ? compare_and_jump<What, T, Form::reg_mem, CC>
                                 : compare_and_jump<What, T, Form::mem_reg, CC>;
  return nullptr;
}

template <Alu What>
Run jump_after(Form form, unsigned bytes, unsigned condition) {
  return by_condition(condition, [&](auto cc) -> Run {
    // Overflow and parity are rare.
    if constexpr (cc() / 2 == 0 || cc() / 2 == 5)
      return nullptr;
    else if (bytes == 1)
      return jump_of<What, std::uint8_t, cc()>(form);
    else if (bytes == 4)
      return jump_of<What, std::uint32_t, cc()>(form);
    else if (bytes == 8)
      return jump_of<What, std::uint64_t, cc()>(form);
    return nullptr;
  });
}

template <Unary What>
Run of_size(bool memory, unsigned bytes) {
  return by_size(bytes,
                 [&](auto t) { return memory ? unary<What, decltype(t), true> : unary<What, decltype(t), false>; });
}

}  // namespace

Run op_alu(Alu what, Form form, unsigned bytes, Address address) {
  switch (what) {
    case Alu::add: return of_size<Alu::add>(form, bytes, address);
    case Alu::bit_or: return of_size<Alu::bit_or>(form, bytes, address);
    case Alu::adc: return of_size<Alu::adc>(form, bytes, address);
    case Alu::sbb: return of_size<Alu::sbb>(form, bytes, address);
    case Alu::bit_and: return of_size<Alu::bit_and>(form, bytes, address);
    case Alu::sub: return of_size<Alu::sub>(form, bytes, address);
    case Alu::bit_xor: return of_size<Alu::bit_xor>(form, bytes, address);
    case Alu::cmp: return of_size<Alu::cmp>(form, bytes, address);
    case Alu::test: return of_size<Alu::test>(form, bytes, address);
  }
  return nullptr;
}

Run op_compare_and_jump(Alu what, Form form, unsigned bytes, unsigned condition) {
  if (what == Alu::cmp) return jump_after<Alu::cmp>(form, bytes, condition);
  return what == Alu::test ? jump_after<Alu::test>(form, bytes, condition) : nullptr;
}

Run op_unary(Unary what, bool memory, unsigned bytes) {
  switch (what) {
    case Unary::inc: return of_size<Unary::inc>(memory, bytes);
    case Unary::dec: return of_size<Unary::dec>(memory, bytes);
    case Unary::bit_not: return of_size<Unary::bit_not>(memory, bytes);
    case Unary::neg: return of_size<Unary::neg>(memory, bytes);
  }
  return nullptr;
}

}  // namespace vpmu::exec
