#include "exec/interpret/ops.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/observe/class_counts.hpp"
#include "exec/observe/tap.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {
namespace {

constexpr std::uint64_t word = 8;

void jmp(const Op* /*op*/, Core* c) { return go(c, 0); }

template <unsigned CC>
void jcc(const Op* op, Core* c) {
  if (!c->flags.is_handy()) [[unlikely]]
    return materialize_first(op, c);
  if (c->flags.holds<CC>()) return go(c, 0);
  return go(c, 1);
}

// LOOP and its like change no flag; RCX is as long as addresses are. SDM 2A JCXZ, LOOP.
template <Loop What>
void loop(const Op* op, Core* c) {
  const std::uint64_t mask = address_mask(*op);
  if constexpr (What != Loop::jcxz) add_to_pointer(c, rcx, ~std::uint64_t{0}, mask);
  const bool is_zero = (c->r[rcx] & mask) == 0;
  if constexpr (What == Loop::jcxz) return go(c, is_zero ? 0 : 1);
  if constexpr (What == Loop::while_equal) return go(c, !is_zero && c->flags.zf() ? 0 : 1);
  if constexpr (What == Loop::while_not_equal) return go(c, !is_zero && !c->flags.zf() ? 0 : 1);
  return go(c, is_zero ? 1 : 0);
}

template <bool Memory>
bool destination(const Op* op, Core* c, std::uint64_t& to) {
  if constexpr (Memory) {
    if (!load(c, address(op, c), to)) return false;
  } else {
    to = reg<std::uint64_t>(c, op->s);
  }
  c->stop = Stop::fault;
  return can_jump(to);
}

template <bool Memory>
void jmp_indirect(const Op* op, Core* c) {
  std::uint64_t to{};
  if (!destination<Memory>(op, c, to)) VPMU_LEAVE(op, c);
  return jump(c, to);
}

[[gnu::noinline]] void call_slow_path(const Op* op, Core* c) {
  if (!store(c, c->r[rsp] - word, next_rip(op, c))) VPMU_LEAVE(op, c);
  c->r[rsp] -= word;
  return go(c, 0);
}

void call(const Op* op, Core* c) {
  const std::uint64_t at = c->r[rsp] - word;
  std::byte* const to = write_fast<std::uint64_t>(c, at);
  if (to == nullptr) [[unlikely]]
    return call_slow_path(op, c);
  const std::uint64_t back = next_rip(op, c);
  std::memcpy(to, &back, sizeof back);
  c->r[rsp] = at;
  return go(c, 0);
}

template <bool Memory>
void call_indirect(const Op* op, Core* c) {
  std::uint64_t to{};
  if (!destination<Memory>(op, c, to)) VPMU_LEAVE(op, c);
  if (!store(c, c->r[rsp] - word, next_rip(op, c))) VPMU_LEAVE(op, c);
  c->r[rsp] -= word;
  return jump(c, to);
}

[[gnu::noinline]] void ret_slow_path(const Op* op, Core* c) {
  std::uint64_t to{};
  if (!load(c, c->r[rsp], to)) VPMU_LEAVE(op, c);
  if (!can_jump(to)) return leave_for(op, c, Stop::fault);
  c->r[rsp] += word + static_cast<std::uint64_t>(op->imm);
  return jump(c, to);
}

void ret(const Op* op, Core* c) {
  const std::byte* const from = read_fast<std::uint64_t>(c, c->r[rsp]);
  if (from == nullptr) [[unlikely]]
    return ret_slow_path(op, c);
  const auto to = value_at<std::uint64_t>(from);
  if (!can_jump(to)) [[unlikely]]
    return leave_for(op, c, Stop::fault);
  c->r[rsp] += word + static_cast<std::uint64_t>(op->imm);
  return jump(c, to);
}

void end(const Op* /*op*/, Core* c) { return go(c, 0); }
void stepped(const Op* op, Core* c) { return end_at(c, c->r[block_rip] + op->offset); }
void unsupported(const Op* op, Core* c) { return leave_for(op, c, Stop::unsupported); }

}  // namespace

Run op_jmp() { return jmp; }
Run op_jcc(unsigned condition) {
  return by_condition(condition, [](auto cc) { return jcc<cc()>; });
}
Run op_loop(Loop what) {
  switch (what) {
    case Loop::loop: return loop<Loop::loop>;
    case Loop::while_equal: return loop<Loop::while_equal>;
    case Loop::while_not_equal: return loop<Loop::while_not_equal>;
    case Loop::jcxz: return loop<Loop::jcxz>;
  }
  return nullptr;
}
Run op_jmp_indirect(bool memory) { return memory ? jmp_indirect<true> : jmp_indirect<false>; }
Run op_call() { return call; }
Run op_call_indirect(bool memory) { return memory ? call_indirect<true> : call_indirect<false>; }
Run op_ret() { return ret; }
Run op_end() { return end; }
Run op_stepped() { return stepped; }
Run op_unsupported() { return unsupported; }

// Out of line: ops reach these by tail calls.

void end_at(Core* c, std::uint64_t rip) {
  c->rip = rip;
  c->stop = Stop::none;
}

void leave(const Op* op, Core* c) {
  c->rip = c->r[block_rip] + op->offset;
  if (c->tap != nullptr) note_left(*c, *op);
  if (c->stepping) return;
  for (const Op* o = op; o->length != 0; ++o) c->left += counts_of(*o);
  if (c->counts_classes) take_back_classes(*c, op);
}

void materialize_first(const Op* op, Core* c) {
  c->flags.materialize();
  // The observer has been told of the op: run the real one.
  const bool told = c->tap != nullptr && !c->stepping;
  const auto index = static_cast<std::size_t>(op - c->block->ops().data());
  if (told) return c->block->observed->real[index](op, c);
  // Its block has counted its classes.
  if (c->counts_classes && index == 0 && c->block->classes != nullptr) return c->block->classes->first(op, c);
  return op->run(op, c);
}

void leave_for(const Op* op, Core* c, Stop why) {
  c->stop = why;
  leave(op, c);
}

}  // namespace vpmu::exec
