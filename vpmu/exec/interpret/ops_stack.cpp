#include "exec/interpret/ops.hpp"
#include "exec/interpret/source.hpp"
#include "exec/interpret/system.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t word = 8;

// Of a word, or of 16 bits.
template <Form F, class T = std::uint64_t>
[[gnu::noinline]] void push_slow_path(const Op* op, Core* c) {
  T value{};
  if (!read_source<F>(op, c, value) || !store(c, c->r[rsp] - sizeof(T), value)) VPMU_LEAVE(op, c);
  c->r[rsp] -= sizeof(T);
  VPMU_NEXT(op, c);
}

template <Form F>
void push(const Op* op, Core* c) {
  const std::uint64_t at = c->r[rsp] - word;
  std::byte* const to = write_fast<std::uint64_t>(c, at);
  if (to == nullptr) [[unlikely]]
    return push_slow_path<F>(op, c);
  const std::uint64_t value = F == Form::reg_reg ? reg<std::uint64_t>(c, op->s) : static_cast<std::uint64_t>(op->imm);
  std::memcpy(to, &value, sizeof value);
  c->r[rsp] = at;
  VPMU_NEXT(op, c);
}

// POP RSP leaves what was popped.
template <class T = std::uint64_t>
[[gnu::noinline]] void pop_slow_path(const Op* op, Core* c) {
  T value{};
  if (!load(c, c->r[rsp], value)) VPMU_LEAVE(op, c);
  c->r[rsp] += sizeof(T);
  set_reg(c, op->d, value);
  VPMU_NEXT(op, c);
}

void pop(const Op* op, Core* c) {
  const std::byte* const from = read_fast<std::uint64_t>(c, c->r[rsp]);
  if (from == nullptr) [[unlikely]]
    return pop_slow_path<>(op, c);
  c->r[rsp] += word;
  set_reg(c, op->d, value_at<std::uint64_t>(from));
  VPMU_NEXT(op, c);
}

// An address with RSP is computed after the increment. SDM 2B POP.
template <class T = std::uint64_t>
void pop_memory(const Op* op, Core* c) {
  T value{};
  if (!load(c, c->r[rsp], value)) VPMU_LEAVE(op, c);
  const std::uint64_t to = address(op, c) + (op->b == rsp * 8 ? sizeof(T) : 0);
  if (!store(c, to, value)) VPMU_LEAVE(op, c);
  c->r[rsp] += sizeof(T);
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
  const std::uint64_t value = (c->other_flags & ~x86::rflags::RF::mask) | c->flags.bits();
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
  const bool is_word = bytes == word;
  switch (form) {
    case Form::reg_reg: return is_word ? push<Form::reg_reg> : push_slow_path<Form::reg_reg, std::uint16_t>;
    case Form::reg_imm: return is_word ? push<Form::reg_imm> : push_slow_path<Form::reg_imm, std::uint16_t>;
    case Form::reg_mem: return is_word ? push_slow_path<Form::reg_mem> : push_slow_path<Form::reg_mem, std::uint16_t>;
    case Form::mem_reg:
    case Form::mem_imm: return nullptr;
  }
  return nullptr;
}

Run op_pop(bool memory, unsigned bytes) {
  if (bytes == word) return memory ? pop_memory<> : pop;
  return memory ? pop_memory<std::uint16_t> : pop_slow_path<std::uint16_t>;
}
Run op_leave() { return leave_frame; }
Run op_enter() { return enter_frame; }
Run op_pushf(unsigned bytes) {
  return bytes == word ? pushf<std::uint64_t> : bytes == 2 ? pushf<std::uint16_t> : nullptr;
}
Run op_popf(unsigned bytes) { return bytes == word ? popf<std::uint64_t> : bytes == 2 ? popf<std::uint16_t> : nullptr; }

}  // namespace vpmu::exec
