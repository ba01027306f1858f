#include "exec/alu.hpp"
#include "exec/dispatch.hpp"
#include "exec/select.hpp"

namespace vpmu::exec {
namespace {

template <Alu What, class T, Form F, bool Plain>
void alu(const Op* op, Core* c) {
  constexpr bool to_memory = F == Form::mem_reg || F == Form::mem_imm;
  T a{};
  T b{};
  std::uint64_t at{};
  if constexpr (to_memory) {
    at = address_of<Plain>(op, c);
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
    if (!load(c, address_of<Plain>(op, c), b)) VPMU_LEAVE(op, c);
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

template <Unary What, class T, bool Memory>
void unary(const Op* op, Core* c) {
  if constexpr (Memory) {
    const std::uint64_t at = address(op, c);
    T a{};
    if (!can_store<T>(c, at) || !load(c, at, a)) VPMU_LEAVE(op, c);
    if (!store(c, at, compute<What>(c->flags, a))) VPMU_LEAVE(op, c);
  } else {
    set_reg(c, op->d, compute<What>(c->flags, reg<T>(c, op->d)));
  }
  VPMU_NEXT(op, c);
}

template <Alu What, class T, bool Plain>
Run of_form(Form form) {
  switch (form) {
    case Form::reg_reg: return alu<What, T, Form::reg_reg, true>;
    case Form::reg_imm: return alu<What, T, Form::reg_imm, true>;
    case Form::reg_mem: return alu<What, T, Form::reg_mem, Plain>;
    case Form::mem_reg: return alu<What, T, Form::mem_reg, Plain>;
    case Form::mem_imm: return alu<What, T, Form::mem_imm, Plain>;
  }
  return nullptr;
}

template <Alu What>
Run of_size(Form form, unsigned bytes, bool plain) {
  return by_size(bytes, [&](auto t) { return plain ? of_form<What, decltype(t), true>(form) : of_form<What, decltype(t), false>(form); });
}

template <Unary What>
Run of_size(bool memory, unsigned bytes) {
  return by_size(bytes, [&](auto t) { return memory ? unary<What, decltype(t), true> : unary<What, decltype(t), false>; });
}

}  // namespace

Run op_alu(Alu what, Form form, unsigned bytes, bool plain) {
  switch (what) {
    case Alu::add: return of_size<Alu::add>(form, bytes, plain);
    case Alu::bit_or: return of_size<Alu::bit_or>(form, bytes, plain);
    case Alu::adc: return of_size<Alu::adc>(form, bytes, plain);
    case Alu::sbb: return of_size<Alu::sbb>(form, bytes, plain);
    case Alu::bit_and: return of_size<Alu::bit_and>(form, bytes, plain);
    case Alu::sub: return of_size<Alu::sub>(form, bytes, plain);
    case Alu::bit_xor: return of_size<Alu::bit_xor>(form, bytes, plain);
    case Alu::cmp: return of_size<Alu::cmp>(form, bytes, plain);
    case Alu::test: return of_size<Alu::test>(form, bytes, plain);
  }
  return nullptr;
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
