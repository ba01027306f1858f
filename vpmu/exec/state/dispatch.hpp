#pragma once
#include <algorithm>
#include <cstring>

#include "exec/state/core.hpp"
#include "vpmu/bits.hpp"

/// How an op ends: VPMU_NEXT goes on to the next one, VPMU_LEAVE gives up before it has changed anything.
///
/// Ops call each other as tail calls, so that a chain of blocks runs without a central loop. Where the compiler does
/// not make tail calls (no optimisation, sanitizers) each op returns to Engine's loop instead.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VPMU_SANITIZED 1
#elif defined(__has_feature)  // clang
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define VPMU_SANITIZED 1
#endif
#endif
#if defined(__OPTIMIZE__) && !defined(VPMU_SANITIZED)
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
VPMU_PART_OF_OP T reg(const Core* c, std::uint8_t offset) {
  T value;
  std::memcpy(&value, reinterpret_cast<const std::byte*>(c->r.data()) + offset, sizeof value);
  return value;
}
/// A 32-bit result clears the upper half. SDM 1 3.4.1.1.
template <class T>
VPMU_PART_OF_OP void set_reg(Core* c, std::uint8_t offset, T value) {
  if constexpr (sizeof(T) == 4) {
    const std::uint64_t wide = value;
    std::memcpy(reinterpret_cast<std::byte*>(c->r.data()) + offset, &wide, sizeof wide);
  } else {
    std::memcpy(reinterpret_cast<std::byte*>(c->r.data()) + offset, &value, sizeof value);
  }
}

/// A mask of the address size.
VPMU_PART_OF_OP std::uint64_t address_mask(const Op& op) {
  return low_bits((op.scale & scale_16_bits) != 0 ? 16 : (op.scale & scale_32_bits) != 0 ? 32 : 64);
}
/// From the sum of an offset and its segment's base.
VPMU_PART_OF_OP std::uint64_t linear_address(const Op& op, std::uint64_t sum) {
  return (op.scale & scale_wraps) != 0 ? sum & low_bits(32) : sum;
}

/// Adds to a pointer or count register in the address size `mask`; 32 bits clear the upper half.
VPMU_PART_OF_OP void add_to_pointer(Core* c, RegisterNumber number, std::uint64_t step, std::uint64_t mask) {
  std::uint64_t& r = c->r[number];
  r = (mask == low_bits(16) ? r & ~mask : 0) | ((r + step) & mask);
}

/// The linear address of the op's memory operand.
VPMU_PART_OF_OP std::uint64_t address(const Op* op, const Core* c) {
  if ((op->scale & scale_any) != 0) [[unlikely]] {
    const std::uint64_t offset = reg<std::uint64_t>(c, op->b) +
                                 (reg<std::uint64_t>(c, op->x) << (op->scale & scale_shift)) +
                                 static_cast<std::uint64_t>(std::int64_t{op->disp});
    return linear_address(*op, (offset & address_mask(*op)) + reg<std::uint64_t>(c, op->seg));
  }
  return reg<std::uint64_t>(c, op->b) + (reg<std::uint64_t>(c, op->x) << op->scale) + reg<std::uint64_t>(c, op->seg) +
         static_cast<std::uint64_t>(std::int64_t{op->disp});
}
/// The same for an operand that is known to be simpler.
template <Address From>
VPMU_PART_OF_OP std::uint64_t address_of(const Op* op, const Core* c) {
  if constexpr (From == Address::any) return address(op, c);
  const std::uint64_t index = From == Address::base ? 0 : reg<std::uint64_t>(c, op->x) << op->scale;
  return reg<std::uint64_t>(c, op->b) + index + static_cast<std::uint64_t>(std::int64_t{op->disp});
}

inline std::uint64_t next_rip(const Op* op, const Core* c) { return c->r[block_rip] + op->offset + op->length; }

/// Stops before `op`; Core::stop says why.
void leave(const Op* op, Core* c);
/// Stops before `op` for another reason than a memory access.
void leave_for(const Op* op, Core* c, Stop why);
/// Whether an op may make `n` accesses of a kind beyond the first; if not, it leaves.
VPMU_PART_OF_OP bool has_room(const Op* op, Core* c, std::int64_t n) {
  if (n <= c->more.left) [[likely]]
    return true;
  leave_for(op, c, Stop::accesses);
  return false;
}
/// Notes accesses of an op beyond its first load and its first store.
VPMU_PART_OF_OP void note_more(Core* c, std::int64_t loads, std::int64_t stores) {
  c->more.loads += loads;
  c->more.stores += stores;
  c->more.left -= std::max(loads, stores);
}
/// Ends the chain of ops: the engine looks for the block at `rip`.
void end_at(Core* c, std::uint64_t rip);

/// Settles the flags, from which `op` could not tell its condition, and runs it again.
void materialize_first(const Op* op, Core* c);

/// Runs from `first` until an op stops.
inline void run_from(const Op* first, Core* c) {
#if VPMU_TAIL_CALLS
  first->run(first, c);
#else
  c->at = first;
  while (c->at != nullptr) {
    const Op* const op = c->at;
    c->at = nullptr;
    op->run(op, c);
  }
#endif
}

VPMU_PART_OF_OP bool any_is_negative(Counts n) {
#if defined(__SSE2__)
  using Half [[gnu::vector_size(16)]] = std::int64_t;
  using HalfSigns [[gnu::vector_size(16)]] = double;
  const Half signs = __builtin_shufflevector(n, n, 0, 1) | __builtin_shufflevector(n, n, 2, 3);
  return __builtin_ia32_movmskpd(__builtin_bit_cast(HalfSigns, signs)) != 0;
#else
  return (n[0] | n[1] | n[2] | n[3]) < 0;
#endif
}

/// Begins `block`, which is fresh at `rip`, unless the counts that are left do not suffice for all of it.
VPMU_PART_OF_OP void enter(Block* block, std::uint64_t rip, Core* c) {
  const Counts left = c->left - block->counts;
  if (any_is_negative(left)) [[unlikely]]
    return end_at(c, rip);
  c->left = left;
  c->block = block;
  c->r[block_rip] = rip;
#if VPMU_TAIL_CALLS
  const Op* const first = block->ops().data();
  return first->run(first, c);
#else
  c->at = block->ops().data();
#endif
}

/// Goes on at the block's exit `way`.
VPMU_PART_OF_OP void go(Core* c, unsigned way) {
  const Block* const from = c->block;
  Block* const to = from->next[way];
  const std::uint64_t rip = c->r[block_rip] + static_cast<std::uint64_t>(from->distance[way]);
  if (to == nullptr || !c->is_fresh(*to, rip)) [[unlikely]]
    return end_at(c, rip);
  return enter(to, rip, c);
}

/// Goes on at a computed address.
VPMU_PART_OF_OP void jump(Core* c, std::uint64_t rip) {
  Block* const to = c->jumps[jump_entry(rip)];
  if (to == nullptr || !c->is_fresh(*to, rip)) [[unlikely]]
    return end_at(c, rip);
  return enter(to, rip, c);
}
/// Whether a jump there would not fault. SDM 3A 4.5: wrong for 5-level paging, where the engine gives up more than it
/// must.
inline bool can_jump(std::uint64_t rip) { return is_canonical(rip, 48); }

}  // namespace vpmu::exec
