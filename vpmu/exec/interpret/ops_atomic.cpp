#include "exec/interpret/alu.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/exchange.hpp"
#include "exec/state/dispatch.hpp"

/// Instructions that other vCPUs, running natively, must see as one step: done with the host's own.
namespace vpmu::exec {
namespace {

template <class T>
VPMU_PART_OF_OP Exchanged<T> to_change(const Op* op, Core* c) {
  return find_to_exchange<T>(c, address(op, c));
}

/// Replaces *at by f(*at) in one step.
template <class T, class F>
void exchange(T* at, F f) {
  T expected = __atomic_load_n(at, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(at, &expected, f(expected), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
  }
}

void leave_with(const LazyFlags& before, const Op* op, Core* c) {
  c->flags = before;
  VPMU_LEAVE(op, c);
}

// `before`: ADC and SBB read CF, which a failed try must not have changed.
template <Alu What, class T, bool Immediate>
void locked_alu(const Op* op, Core* c) {
  const Exchanged<T> e = to_change<T>(op, c);
  if (e.at == nullptr) VPMU_LEAVE(op, c);
  const T b = Immediate ? static_cast<T>(op->imm) : reg<T>(c, op->s);
  const LazyFlags before = c->flags;
  exchange(e.at, [&](T a) {
    c->flags = before;
    return compute<What>(c->flags, a, b);
  });
  if (!finish(c, e)) return leave_with(before, op, c);
  VPMU_NEXT(op, c);
}

template <Unary What, class T>
void locked_unary(const Op* op, Core* c) {
  const Exchanged<T> e = to_change<T>(op, c);
  if (e.at == nullptr) VPMU_LEAVE(op, c);
  const LazyFlags before = c->flags;
  exchange(e.at, [&](T a) {
    c->flags = before;
    return compute<What>(c->flags, a);
  });
  if (!finish(c, e)) return leave_with(before, op, c);
  VPMU_NEXT(op, c);
}

template <class T>
void xchg(const Op* op, Core* c) {
  const Exchanged<T> e = to_change<T>(op, c);
  if (e.at == nullptr) VPMU_LEAVE(op, c);
  const T before = __atomic_exchange_n(e.at, reg<T>(c, op->s), __ATOMIC_SEQ_CST);
  if (!finish(c, e)) VPMU_LEAVE(op, c);
  set_reg(c, op->s, before);
  VPMU_NEXT(op, c);
}

// Only one of the destination and the accumulator is written: the upper half of the other survives a 32-bit operation,
// as CPUs do it.
template <class T, bool Memory, bool Locked>
void cmpxchg(const Op* op, Core* c) {
  const T expected = reg<T>(c, rax * 8);
  const T desired = reg<T>(c, op->s);
  T found = expected;
  if constexpr (!Memory) {
    found = reg<T>(c, op->d);
    if (found == expected) set_reg(c, op->d, desired);
  } else if constexpr (Locked) {
    const Exchanged<T> e = to_change<T>(op, c);
    if (e.at == nullptr) VPMU_LEAVE(op, c);
    __atomic_compare_exchange_n(e.at, &found, desired, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (!finish(c, e)) VPMU_LEAVE(op, c);
  } else {
    const std::uint64_t at = address(op, c);
    if (!can_store<T>(c, at) || !load(c, at, found)) VPMU_LEAVE(op, c);
    if (!store(c, at, found == expected ? desired : found)) VPMU_LEAVE(op, c);
  }
  compute<Alu::cmp>(c->flags, expected, found);
  if (found != expected) set_reg(c, rax * 8, found);
  VPMU_NEXT(op, c);
}

// Locked or not: an atomic one is right for both.
void cmpxchg8b(const Op* op, Core* c) {
  const auto pair = [c](RegisterNumber high, RegisterNumber low) {
    return std::uint64_t{reg<std::uint32_t>(c, high * 8)} << 32 | reg<std::uint32_t>(c, low * 8);
  };
  const Exchanged<std::uint64_t> e = to_change<std::uint64_t>(op, c);
  if (e.at == nullptr) VPMU_LEAVE(op, c);
  const std::uint64_t expected = pair(rdx, rax);
  const std::uint64_t found = __sync_val_compare_and_swap(e.at, expected, pair(rcx, rbx));
  if (!finish(c, e)) VPMU_LEAVE(op, c);
  c->flags.set_zf(found == expected);
  if (found != expected) {
    set_reg(c, rax * 8, static_cast<std::uint32_t>(found));
    set_reg(c, rdx * 8, static_cast<std::uint32_t>(found >> 32));
  }
  VPMU_NEXT(op, c);
}
void cmpxchg16b(const Op* op, Core* c) {
  const std::uint64_t at = address(op, c);
  if (at % 16 != 0) return leave_for(op, c, Stop::fault);
  if (!has_room(op, c, 1)) return;
  std::byte* const to = find_to_change<std::uint64_t>(c, at);
  if (to == nullptr) VPMU_LEAVE(op, c);
  bool equal = false;  // NOLINT(misc-const-correctness): the asm writes it
  __asm__ volatile("lock cmpxchg16b %1"
                   : "=@ccz"(equal), "+m"(*reinterpret_cast<std::uint64_t(*)[2]>(to)), "+a"(c->r[rax]), "+d"(c->r[rdx])
                   : "b"(c->r[rbx]), "c"(c->r[rcx])
                   : "memory");
  c->flags.set_zf(equal);
  note_more(c, 1, 1);  // 8 bytes each
  VPMU_NEXT(op, c);
}

template <class T, bool Memory, bool Locked>
void xadd(const Op* op, Core* c) {
  const T b = reg<T>(c, op->s);
  T a{};
  if constexpr (!Memory) {
    a = reg<T>(c, op->d);
    const T sum = compute<Alu::add>(c->flags, a, b);
    set_reg(c, op->s, a);
    set_reg(c, op->d, sum);
  } else if constexpr (Locked) {
    const Exchanged<T> e = to_change<T>(op, c);
    if (e.at == nullptr) VPMU_LEAVE(op, c);
    a = __atomic_fetch_add(e.at, b, __ATOMIC_SEQ_CST);
    if (!finish(c, e)) VPMU_LEAVE(op, c);
    compute<Alu::add>(c->flags, a, b);
    set_reg(c, op->s, a);
  } else {
    const std::uint64_t at = address(op, c);
    if (!can_store<T>(c, at) || !load(c, at, a)) VPMU_LEAVE(op, c);
    if (!store(c, at, compute<Alu::add>(c->flags, a, b))) VPMU_LEAVE(op, c);
    set_reg(c, op->s, a);
  }
  VPMU_NEXT(op, c);
}

template <Alu What>
Run locked_of(bool immediate, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    return immediate ? locked_alu<What, decltype(t), true> : locked_alu<What, decltype(t), false>;
  });
}

}  // namespace

Run op_locked_alu(Alu what, bool immediate, unsigned bytes) {
  switch (what) {
    case Alu::add: return locked_of<Alu::add>(immediate, bytes);
    case Alu::bit_or: return locked_of<Alu::bit_or>(immediate, bytes);
    case Alu::adc: return locked_of<Alu::adc>(immediate, bytes);
    case Alu::sbb: return locked_of<Alu::sbb>(immediate, bytes);
    case Alu::bit_and: return locked_of<Alu::bit_and>(immediate, bytes);
    case Alu::sub: return locked_of<Alu::sub>(immediate, bytes);
    case Alu::bit_xor: return locked_of<Alu::bit_xor>(immediate, bytes);
    case Alu::cmp:
    case Alu::test: return nullptr;  // #UD with LOCK
  }
  return nullptr;
}

Run op_locked_unary(Unary what, unsigned bytes) {
  return by_size(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (what) {
      case Unary::inc: return locked_unary<Unary::inc, T>;
      case Unary::dec: return locked_unary<Unary::dec, T>;
      case Unary::bit_not: return locked_unary<Unary::bit_not, T>;
      case Unary::neg: return locked_unary<Unary::neg, T>;
    }
    return nullptr;
  });
}

Run op_xchg_memory(unsigned bytes) {
  return by_size(bytes, [](auto t) { return xchg<decltype(t)>; });
}

Run op_cmpxchg(bool memory, bool locked, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    using T = decltype(t);
    return !memory ? cmpxchg<T, false, false> : locked ? cmpxchg<T, true, true> : cmpxchg<T, true, false>;
  });
}

Run op_cmpxchg8b() { return cmpxchg8b; }
Run op_cmpxchg16b() { return cmpxchg16b; }

Run op_xadd(bool memory, bool locked, unsigned bytes) {
  return by_size(bytes, [&](auto t) {
    using T = decltype(t);
    return !memory ? xadd<T, false, false> : locked ? xadd<T, true, true> : xadd<T, true, false>;
  });
}

}  // namespace vpmu::exec
