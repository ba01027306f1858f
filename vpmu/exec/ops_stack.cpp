#include "exec/dispatch.hpp"
#include "exec/ops.hpp"
#include "exec/system.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t word = 8;

template <Form F>
[[gnu::noinline]] void push_slowly(const Op* op, Core* c) {
  std::uint64_t value{};
  if constexpr (F == Form::reg_reg) value = reg<std::uint64_t>(c, op->s);
  if constexpr (F == Form::reg_imm) value = static_cast<std::uint64_t>(op->imm);
  if constexpr (F == Form::reg_mem) {
    if (!load(c, address(op, c), value)) VPMU_LEAVE(op, c);
  }
  if (!store(c, c->r[rsp] - word, value)) VPMU_LEAVE(op, c);
  c->r[rsp] -= word;
  VPMU_NEXT(op, c);
}

template <Form F>
void push(const Op* op, Core* c) {
  const std::uint64_t at = c->r[rsp] - word;
  std::byte* const to = write_quickly<std::uint64_t>(c, at);
  if (to == nullptr) [[unlikely]]
    return push_slowly<F>(op, c);
  const std::uint64_t value = F == Form::reg_reg ? reg<std::uint64_t>(c, op->s) : static_cast<std::uint64_t>(op->imm);
  std::memcpy(to, &value, sizeof value);
  c->r[rsp] = at;
  VPMU_NEXT(op, c);
}

// POP RSP leaves what was popped.
[[gnu::noinline]] void pop_slowly(const Op* op, Core* c) {
  std::uint64_t value{};
  if (!load(c, c->r[rsp], value)) VPMU_LEAVE(op, c);
  c->r[rsp] += word;
  set_reg(c, op->d, value);
  VPMU_NEXT(op, c);
}

void pop(const Op* op, Core* c) {
  const std::byte* const from = read_quickly<std::uint64_t>(c, c->r[rsp]);
  if (from == nullptr) [[unlikely]]
    return pop_slowly(op, c);
  c->r[rsp] += word;
  set_reg(c, op->d, value_at<std::uint64_t>(from));
  VPMU_NEXT(op, c);
}

// An address with RSP is computed after the increment. SDM 2B POP.
void pop_memory(const Op* op, Core* c) {
  std::uint64_t value{};
  if (!load(c, c->r[rsp], value)) VPMU_LEAVE(op, c);
  const std::uint64_t to = address(op, c) + (op->b == rsp * 8 ? word : 0);
  if (!store(c, to, value)) VPMU_LEAVE(op, c);
  c->r[rsp] += word;
  VPMU_NEXT(op, c);
}

void leave_frame(const Op* op, Core* c) {
  std::uint64_t value{};
  if (!load(c, c->r[rbp], value)) VPMU_LEAVE(op, c);
  c->r[rsp] = c->r[rbp] + word;
  c->r[rbp] = value;
  VPMU_NEXT(op, c);
}

// SDM 2A ENTER: of level 0. It faults where the end of the frame could not be written to.
void enter_frame(const Op* op, Core* c) {
  const std::uint64_t end = c->r[rsp] - word - static_cast<std::uint64_t>(op->imm);
  if (!can_store<std::uint64_t>(c, end) || !store(c, c->r[rsp] - word, c->r[rbp])) VPMU_LEAVE(op, c);
  c->r[rbp] = c->r[rsp] - word;
  c->r[rsp] = c->r[rbp] - static_cast<std::uint64_t>(op->imm);
  VPMU_NEXT(op, c);
}

// RF and VM are pushed as 0. SDM 2B PUSHF. Of a word, or of 16 bits.
template <class T>
void pushf(const Op* op, Core* c) {
  const std::uint64_t value = (c->other_flags & ~rflags::RF) | c->flags.bits();
  if (!store(c, c->r[rsp] - sizeof(T), static_cast<T>(value))) VPMU_LEAVE(op, c);
  c->r[rsp] -= sizeof(T);
  VPMU_NEXT(op, c);
}

// 16 bits leave the others as they are.
template <class T>
void popf(const Op* op, Core* c) {
  T popped{};
  if (!load(c, c->r[rsp], popped)) VPMU_LEAVE(op, c);
  const std::uint64_t kept = sizeof(T) == word ? 0 : c->other_flags & ~std::uint64_t{static_cast<T>(~T{0})};
  const std::uint64_t value = kept | popped;
  if (!can_set_flags(*c, value)) return leave_for(op, c, Stop::unsupported);
  c->r[rsp] += sizeof(T);
  set_flags(*c, value);
  VPMU_NEXT(op, c);
}

}  // namespace

Run op_push(Form form, unsigned bytes) {
  if (bytes != word) return nullptr;
  switch (form) {
    case Form::reg_reg: return push<Form::reg_reg>;
    case Form::reg_imm: return push<Form::reg_imm>;
    case Form::reg_mem: return push_slowly<Form::reg_mem>;
    case Form::mem_reg:
    case Form::mem_imm: return nullptr;
  }
  return nullptr;
}

Run op_pop(bool memory, unsigned bytes) { return bytes != word ? nullptr : memory ? pop_memory : pop; }
Run op_leave() { return leave_frame; }
Run op_enter() { return enter_frame; }
Run op_pushf(unsigned bytes) {
  return bytes == word ? pushf<std::uint64_t> : bytes == 2 ? pushf<std::uint16_t> : nullptr;
}
Run op_popf(unsigned bytes) { return bytes == word ? popf<std::uint64_t> : bytes == 2 ? popf<std::uint16_t> : nullptr; }

}  // namespace vpmu::exec
