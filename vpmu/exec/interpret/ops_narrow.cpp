#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/interpret/source.hpp"
#include "exec/interpret/system.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/x86.hpp"

/// What 16- and 32-bit code does in another way than 64-bit code: the stack and near branches; and what only it has.
/// SDM 1 3.6, 6.2, 7.3.
namespace vpmu::exec {
namespace {

// The stack: SDM 3A 5.3.3. Offsets have as many bits as SS.B says.

VPMU_PART_OF_OP std::uint64_t stack_at(const Core* c, std::uint64_t offset) {
  return (c->r[ss_base] + (offset & c->stack_mask)) & low_bits(32);
}
VPMU_PART_OF_OP void set_stack(Core* c, std::uint64_t offset) {
  c->r[rsp] = (c->r[rsp] & low_bits(32) & ~c->stack_mask) | (offset & c->stack_mask);
}
template <class T>
VPMU_PART_OF_OP bool push_value(Core* c, T value) {
  if (!store(c, stack_at(c, c->r[rsp] - sizeof(T)), value)) return false;
  set_stack(c, c->r[rsp] - sizeof(T));
  return true;
}

template <class T, Form F>
void narrow_push(const Op* op, Core* c) {
  T value{};
  if (!read_source<F>(op, c, value) || !push_value(c, value)) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}

// POP ESP leaves what was popped.
template <class T>
void pop(const Op* op, Core* c) {
  T value{};
  if (!load(c, stack_at(c, c->r[rsp]), value)) VPMU_LEAVE(op, c);
  set_stack(c, c->r[rsp] + sizeof(T));
  set_reg(c, op->d, value);
  VPMU_NEXT(op, c);
}

// An address with ESP is computed after the increment. SDM 2B POP.
template <class T>
void pop_memory(const Op* op, Core* c) {
  T value{};
  if (!load(c, stack_at(c, c->r[rsp]), value)) VPMU_LEAVE(op, c);
  const std::uint64_t to = address(op, c) + (op->b == rsp * 8 ? sizeof(T) : 0);
  if (!store(c, to, value)) VPMU_LEAVE(op, c);
  set_stack(c, c->r[rsp] + sizeof(T));
  VPMU_NEXT(op, c);
}

constexpr unsigned registers_pushed = 8;

// In the order of their numbers; ESP as it was before. SDM 2B PUSHA, POPA.
template <class T>
void push_all(const Op* op, Core* c) {
  if (!has_room(op, c, registers_pushed - 1)) return;
  for (unsigned n = 0; n < registers_pushed; ++n)
    if (!store(c, stack_at(c, c->r[rsp] - (n + 1) * sizeof(T)), static_cast<T>(c->r[n]))) VPMU_LEAVE(op, c);
  set_stack(c, c->r[rsp] - registers_pushed * sizeof(T));
  note_more(c, 0, registers_pushed - 1);
  VPMU_NEXT(op, c);
}
template <class T>
void pop_all(const Op* op, Core* c) {
  if (!has_room(op, c, registers_pushed - 1)) return;
  std::array<T, registers_pushed> values{};
  for (unsigned n = 0; n < registers_pushed; ++n)
    if (n != rsp && !load(c, stack_at(c, c->r[rsp] + (registers_pushed - 1 - n) * sizeof(T)), values[n]))
      VPMU_LEAVE(op, c);
  for (std::uint8_t n = 0; n < registers_pushed; ++n)
    if (n != rsp) set_reg(c, static_cast<std::uint8_t>(n * 8), values[n]);
  set_stack(c, c->r[rsp] + registers_pushed * sizeof(T));
  note_more(c, registers_pushed - 2, 0);
  VPMU_NEXT(op, c);
}

// RF and VM are pushed as 0. SDM 2B PUSHF.
template <class T>
void push_flags(const Op* op, Core* c) {
  const std::uint64_t value = (c->other_flags & ~x86::rflags::RF::mask) | c->flags.bits();
  if (!push_value(c, static_cast<T>(value))) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}
template <class T>
void pop_flags(const Op* op, Core* c) {
  T popped{};
  if (!load(c, stack_at(c, c->r[rsp]), popped)) VPMU_LEAVE(op, c);
  const std::uint64_t value = (c->other_flags & ~std::uint64_t{static_cast<T>(~T{0})}) | popped;
  if (!can_set_flags(*c, value)) return leave_for(op, c, Stop::unsupported);
  set_stack(c, c->r[rsp] + sizeof(T));
  set_flags(*c, value);
  VPMU_NEXT(op, c);
}

template <class T>
void leave_frame(const Op* op, Core* c) {
  T value{};
  if (!load(c, stack_at(c, c->r[rbp]), value)) VPMU_LEAVE(op, c);
  set_stack(c, c->r[rbp] + sizeof(T));
  set_reg(c, rbp * 8, value);
  VPMU_NEXT(op, c);
}

// SDM 2A ENTER: of level 0. It faults where the end of the frame could not be written to.
template <class T>
void enter_frame(const Op* op, Core* c) {
  const std::uint64_t end = c->r[rsp] - sizeof(T) - static_cast<std::uint64_t>(op->imm);
  if (!can_store<T>(c, stack_at(c, end))) VPMU_LEAVE(op, c);
  if (!push_value(c, reg<T>(c, rbp * 8))) VPMU_LEAVE(op, c);
  set_reg(c, rbp * 8, static_cast<T>(c->r[rsp]));
  set_stack(c, c->r[rsp] - static_cast<std::uint64_t>(op->imm));
  VPMU_NEXT(op, c);
}

// Near branches. RIP is a linear address here, and an offset in the code segment in memory. SDM 2A CALL, JMP.

VPMU_PART_OF_OP std::uint64_t code_at(const Core* c, std::uint64_t offset) {
  return (c->r[cs_base] + offset) & low_bits(32);
}
template <class T>
T return_offset(const Op* op, const Core* c) {
  return static_cast<T>(next_rip(op, c) - c->r[cs_base]);
}
template <class T, bool Memory>
VPMU_PART_OF_OP bool destination(const Op* op, Core* c, T& to) {
  if constexpr (Memory) return load(c, address(op, c), to);
  to = reg<T>(c, op->s);
  return true;
}

template <class T, bool Memory>
void jmp_indirect(const Op* op, Core* c) {
  T to{};
  if (!destination<T, Memory>(op, c, to)) VPMU_LEAVE(op, c);
  return jump(c, code_at(c, to));
}
template <class T>
void call(const Op* op, Core* c) {
  if (!push_value(c, return_offset<T>(op, c))) VPMU_LEAVE(op, c);
  return go(c, 0);
}
template <class T, bool Memory>
void call_indirect(const Op* op, Core* c) {
  T to{};
  if (!destination<T, Memory>(op, c, to)) VPMU_LEAVE(op, c);
  if (!push_value(c, return_offset<T>(op, c))) VPMU_LEAVE(op, c);
  return jump(c, code_at(c, to));
}
template <class T>
void ret(const Op* op, Core* c) {
  T to{};
  if (!load(c, stack_at(c, c->r[rsp]), to)) VPMU_LEAVE(op, c);
  set_stack(c, c->r[rsp] + sizeof(T) + static_cast<std::uint64_t>(op->imm));
  return jump(c, code_at(c, to));
}

// Decimal arithmetic. SDM 2A AAA to AAS, DAA, DAS. Flags that are undefined are those of the result.

std::uint64_t flags_of(std::uint8_t result, bool carry, bool adjusted) {
  LazyFlags flags;
  flags.set_logic(result);
  return flags.bits() | (carry ? x86::rflags::CF::mask : 0) | (adjusted ? x86::rflags::AF::mask : 0);
}

template <Decimal What>
void decimal(const Op* op, Core* c) {
  constexpr std::uint8_t digit = 0xF, last_digit = 9, six = 6, sixty = 0x60, last = 0x99;
  const std::uint64_t before = c->flags.bits();
  const bool carry = x86::rflags::CF::test(before);
  const auto al = reg<std::uint8_t>(c, rax * 8);
  const auto ah = reg<std::uint8_t>(c, rax * 8 + 1);
  const bool adjusts = (al & digit) > last_digit || x86::rflags::AF::test(before);
  if constexpr (What == Decimal::aam || What == Decimal::aad) {
    const auto base = static_cast<std::uint8_t>(op->imm);
    if (What == Decimal::aam && base == 0) return leave_for(op, c, Stop::fault);  // #DE
    const auto low = static_cast<std::uint8_t>(What == Decimal::aam ? al % base : al + ah * base);
    const auto high = static_cast<std::uint8_t>(What == Decimal::aam ? al / base : 0);
    set_reg(c, rax * 8, static_cast<std::uint16_t>(high << 8 | low));
    c->flags.set_bits(flags_of(low, false, false));
  } else if constexpr (What == Decimal::aaa || What == Decimal::aas) {
    auto ax = reg<std::uint16_t>(c, rax * 8);
    if (adjusts) ax = static_cast<std::uint16_t>(What == Decimal::aaa ? ax + 0x106 : ax - 0x106);
    ax &= 0xFF0F;
    set_reg(c, rax * 8, ax);
    c->flags.set_bits(flags_of(static_cast<std::uint8_t>(ax), adjusts, adjusts));
  } else {
    constexpr bool adds = What == Decimal::daa;
    const bool high = al > last || carry;
    const unsigned by = (adjusts ? six : 0U) + (high ? sixty : 0U);
    const auto result = static_cast<std::uint8_t>(adds ? al + by : al - by);
    const bool borrows = !adds && adjusts && al < six;
    set_reg(c, rax * 8, result);
    c->flags.set_bits(flags_of(result, high || borrows, adjusts));
  }
  VPMU_NEXT(op, c);
}

// All processors have it, though the manual does not: like SBB AL, AL, but flags stay.
void set_al_from_carry(const Op* op, Core* c) {
  set_reg(c, rax * 8, static_cast<std::uint8_t>(x86::rflags::CF::test(c->flags.bits()) ? 0xFF : 0));
  VPMU_NEXT(op, c);
}

/// Calls `pick` with a value of the unsigned type of a stack or branch operand.
template <class Pick>
Run by_stack_size(unsigned bytes, Pick pick) {
  return bytes == 2 ? pick(std::uint16_t{}) : bytes == 4 ? pick(std::uint32_t{}) : nullptr;
}

}  // namespace

Run op_narrow_push(Form form, unsigned bytes) {
  return by_stack_size(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (form) {
      case Form::reg_reg: return narrow_push<T, Form::reg_reg>;
      case Form::reg_imm: return narrow_push<T, Form::reg_imm>;
      case Form::reg_mem: return narrow_push<T, Form::reg_mem>;
      case Form::mem_reg:
      case Form::mem_imm: return nullptr;
    }
    return nullptr;
  });
}
Run op_narrow_pop(bool memory, unsigned bytes) {
  return by_stack_size(bytes, [&](auto t) { return memory ? pop_memory<decltype(t)> : pop<decltype(t)>; });
}
Run op_narrow(Narrow what, unsigned bytes) {
  return by_stack_size(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (what) {
      case Narrow::push_all: return push_all<T>;
      case Narrow::pop_all: return pop_all<T>;
      case Narrow::push_flags: return push_flags<T>;
      case Narrow::pop_flags: return pop_flags<T>;
      case Narrow::leave: return leave_frame<T>;
      case Narrow::enter: return enter_frame<T>;
      case Narrow::call: return call<T>;
      case Narrow::call_register: return call_indirect<T, false>;
      case Narrow::call_memory: return call_indirect<T, true>;
      case Narrow::jmp_register: return jmp_indirect<T, false>;
      case Narrow::jmp_memory: return jmp_indirect<T, true>;
      case Narrow::ret: return ret<T>;
    }
    return nullptr;
  });
}
Run op_decimal(Decimal what) {
  switch (what) {
    case Decimal::aaa: return decimal<Decimal::aaa>;
    case Decimal::aas: return decimal<Decimal::aas>;
    case Decimal::daa: return decimal<Decimal::daa>;
    case Decimal::das: return decimal<Decimal::das>;
    case Decimal::aam: return decimal<Decimal::aam>;
    case Decimal::aad: return decimal<Decimal::aad>;
    case Decimal::salc: return set_al_from_carry;
  }
  return nullptr;
}

}  // namespace vpmu::exec
