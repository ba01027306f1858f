#pragma once
#include "exec/access.hpp"
#include "exec/core.hpp"

/// How an op ends: VPMU_NEXT goes on to the next one, VPMU_LEAVE gives up before it has changed anything.
///
/// Ops call each other as tail calls, so that a chain of blocks runs without a central loop. Where the compiler does not make tail calls
/// (no optimisation, sanitizers) each op returns to Engine's loop instead.
#if defined(__OPTIMIZE__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define VPMU_TAIL_CALLS 1
#define VPMU_NEXT(op, c) return (op)[1].run((op) + 1, c)
#else
#define VPMU_TAIL_CALLS 0
#define VPMU_NEXT(op, c) \
  do {                   \
    (c)->at = (op) + 1;  \
    return;              \
  } while (false)
#endif
#define VPMU_LEAVE(op, c) return leave(op, c)

namespace vpmu::exec {

template <class T>
T reg(const Core* c, std::uint8_t offset) {
  T value;
  std::memcpy(&value, reinterpret_cast<const std::byte*>(c->r.data()) + offset, sizeof value);
  return value;
}
/// A 32-bit result clears the upper half. SDM 1 3.4.1.1.
template <class T>
void set_reg(Core* c, std::uint8_t offset, T value) {
  if constexpr (sizeof(T) == 4) {
    const std::uint64_t wide = value;
    std::memcpy(reinterpret_cast<std::byte*>(c->r.data()) + offset, &wide, sizeof wide);
  } else {
    std::memcpy(reinterpret_cast<std::byte*>(c->r.data()) + offset, &value, sizeof value);
  }
}

/// The linear address of the op's memory operand.
inline std::uint64_t address(const Op* op, const Core* c) {
  return reg<std::uint64_t>(c, op->b) + (reg<std::uint64_t>(c, op->x) << op->scale) + reg<std::uint64_t>(c, op->seg) +
         static_cast<std::uint64_t>(std::int64_t{op->disp});
}
/// The same for an operand without index and segment base.
inline std::uint64_t plain_address(const Op* op, const Core* c) {
  return reg<std::uint64_t>(c, op->b) + static_cast<std::uint64_t>(std::int64_t{op->disp});
}
template <bool Plain>
std::uint64_t address_of(const Op* op, const Core* c) {
  if constexpr (Plain) return plain_address(op, c);
  return address(op, c);
}

inline std::uint64_t next_rip(const Op* op, const Core* c) { return c->block->rip + op->offset + op->length; }

/// Stops before `op`, Core::stop saying why.
void leave(const Op* op, Core* c);
/// Stops before `op` for another reason than a memory access.
void leave_for(const Op* op, Core* c, Stop why);
/// Stops after `op`; the engine looks where RIP leads.
void end_at(Core* c, std::uint64_t rip);

/// Begins `block`, unless the counts that are left do not suffice for all of it.
inline void enter(Block* block, Core* c) {
  const Counts left = c->left - block->counts;
  if ((left[0] | left[1] | left[2] | left[3]) < 0) [[unlikely]] return end_at(c, block->rip);
  c->left = left;
  c->block = block;
  c->r[block_rip] = block->rip;
#if VPMU_TAIL_CALLS
  const Op* const first = block->ops.data();
  return first->run(first, c);
#else
  c->at = block->ops.data();
#endif
}

/// Goes on where the block leads on its way `way`.
inline void go(Core* c, unsigned way) {
  const Block* const from = c->block;
  Block* const to = from->next[way];
  if (to == nullptr || to->epoch != c->epoch) [[unlikely]] return end_at(c, from->target[way]);
  return enter(to, c);
}

/// Goes on at a computed address.
inline void jump(Core* c, std::uint64_t rip) {
  Block* const to = c->jumps[(rip ^ rip >> 12) % jump_entries];
  if (to == nullptr || to->rip != rip || to->epoch != c->epoch) [[unlikely]] return end_at(c, rip);
  return enter(to, c);
}
/// Whether a jump there would not fault. SDM 3A 4.5: wrong for 5-level paging, where the engine gives up more than it must.
inline bool can_jump(std::uint64_t rip) { return is_canonical(rip, 48); }

}  // namespace vpmu::exec
