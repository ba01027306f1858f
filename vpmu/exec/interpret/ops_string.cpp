#include <algorithm>
#include <type_traits>

#include "exec/interpret/alu.hpp"
#include "exec/interpret/select.hpp"
#include "exec/memory/access.hpp"
#include "exec/observe/tap.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/x86.hpp"

namespace vpmu::exec {
namespace {

/// Elements in one go. A longer one stops between two and goes on later, as an interrupt would make it on a CPU (SDM 2B
/// REP).
constexpr unsigned max_elements = 4096;

/// RSI, RDI and RCX with 64 bits,
struct Wide {
  explicit Wide(const Op* /*op*/) {}
  static std::uint64_t from(const Op* op, const Core* c) { return c->r[rsi] + reg<std::uint64_t>(c, op->seg); }
  static std::uint64_t to(const Op* /*op*/, const Core* c) { return c->r[rdi]; }
  static std::uint64_t count(const Core* c) { return c->r[rcx]; }
  static void add(Core* c, RegisterNumber number, std::uint64_t step) { c->r[number] += step; }
};
/// and with the address size. RDI points into ES.
struct Narrow {
  explicit Narrow(const Op* op) : mask{address_mask(*op)} {}
  [[nodiscard]] std::uint64_t from(const Op* op, const Core* c) const {
    return linear_address(*op, (c->r[rsi] & mask) + reg<std::uint64_t>(c, op->seg));
  }
  [[nodiscard]] std::uint64_t to(const Op* op, const Core* c) const {
    return linear_address(*op, (c->r[rdi] & mask) + c->r[es_base]);
  }
  [[nodiscard]] std::uint64_t count(const Core* c) const { return c->r[rcx] & mask; }
  void add(Core* c, RegisterNumber number, std::uint64_t step) const { add_to_pointer(c, number, step, mask); }
  std::uint64_t mask;
};

/// One element. False: the instruction must stop here.
template <String What, class T, class Pointers>
bool element(const Op* op, Core* c, std::uint64_t step, const Pointers& p) {
  const std::uint64_t from = p.from(op, c);
  const std::uint64_t to = p.to(op, c);
  T a{};
  T b{};
  if constexpr (What == String::movs) {
    if (!load(c, from, a) || !store(c, to, a)) return false;
  } else if constexpr (What == String::stos) {
    if (!store(c, to, reg<T>(c, rax * 8))) return false;
  } else if constexpr (What == String::lods) {
    if (!load(c, from, a)) return false;
    set_reg(c, rax * 8, a);
  } else if constexpr (What == String::scas) {
    if (!load(c, to, b)) return false;
    compute<Alu::cmp>(c->flags, reg<T>(c, rax * 8), b);
  } else {
    if (!load(c, from, a) || !load(c, to, b)) return false;
    compute<Alu::cmp>(c->flags, a, b);
  }
  if constexpr (What == String::movs || What == String::lods || What == String::cmps) p.add(c, rsi, step);
  if constexpr (What != String::lods) p.add(c, rdi, step);
  return true;
}

/// As many elements of MOVS or STOS as lie in pages that the TLB knows, at most `most`, upwards; 0: none, for element()
/// to find out why. Nobody observes.
template <String What, class T>
[[gnu::noinline]] std::uint64_t many(const Op* op, Core* c, std::uint64_t max) {
  const std::uint64_t to = c->r[rdi];
  const std::uint64_t from = c->r[rsi] + reg<std::uint64_t>(c, op->seg);
  const auto fit = [](std::uint64_t at) { return (page_size - at % page_size) / sizeof(T); };
  const std::uint64_t n = std::min({max, fit(to), What == String::movs ? fit(from) : max});
  const std::uint64_t bytes = n * sizeof(T);
  if (n == 0 || !can_write_fast(c, to, bytes)) return 0;
  std::byte* const target = known_address(c, to);
  if constexpr (What == String::movs) {
    if (!can_read_fast(c, from, bytes)) return 0;
    const std::byte* const source = known_address(c, from);
    // If the target lies a little above the source, MOVS loads again what it has stored; memmove() does not.
    if (target > source && target < source + bytes) return 0;
    std::memmove(target, source, bytes);
    c->r[rsi] += bytes;
  } else {
    const T value = reg<T>(c, rax * 8);
    for (std::uint64_t i = 0; i < n; ++i) std::memcpy(target + i * sizeof(T), &value, sizeof value);
  }
  c->r[rdi] += bytes;
  c->r[rcx] -= n;
  return n;
}

constexpr std::int64_t loads_of(String what) { return what == String::cmps ? 2 : what == String::stos ? 0 : 1; }
constexpr std::int64_t stores_of(String what) { return what == String::movs || what == String::stos ? 1 : 0; }

/// Notes the accesses of so many elements. Of an instruction that retires, the first access of each kind counts with
/// it.
template <String What>
void note_elements(Core* c, std::int64_t n, bool retires) {
  constexpr std::int64_t loads = loads_of(What), stores = stores_of(What);
  note_more(c, n * loads - (retires ? std::min<std::int64_t>(loads, 1) : 0), n * stores - (retires ? stores : 0));
}

template <String What, Repeat How, class T, class Pointers>
void string(const Op* op, Core* c) {
  const Pointers p{op};
  const std::uint64_t step = x86::rflags::DF::test(c->other_flags) ? std::uint64_t{0} - sizeof(T) : sizeof(T);
  if constexpr (How == Repeat::none) {
    if (What == String::cmps && !has_room(op, c, 1)) return;
    if (!element<What, T>(op, c, step, p)) VPMU_LEAVE(op, c);
    if constexpr (What == String::cmps) note_elements<What>(c, 1, true);
  } else {
    constexpr bool compares = What == String::scas || What == String::cmps;
    constexpr bool may_be_many = std::is_same_v<Pointers, Wide> && (What == String::movs || What == String::stos);
    const auto at_most = static_cast<std::int64_t>(std::min<std::uint64_t>(p.count(c), max_elements));
    if (!has_room(op, c, at_most * std::max(loads_of(What), stores_of(What)))) return;
    unsigned n = 0;
    for (; p.count(c) != 0; ++n) {
      if constexpr (may_be_many)
        if (step == sizeof(T) && c->tap == nullptr) {
          n += static_cast<unsigned>(many<What, T>(op, c, std::min<std::uint64_t>(c->r[rcx], max_elements - n)));
          if (c->r[rcx] == 0) break;
        }
      const bool is_done = n == max_elements;
      if (is_done || !element<What, T>(op, c, step, p)) {
        note_elements<What>(c, n, false);
        if (is_done) return leave_for(op, c, Stop::again);
        VPMU_LEAVE(op, c);
      }
      if (c->tap != nullptr) [[unlikely]]
        note_element(*c);
      p.add(c, rcx, ~std::uint64_t{0});
      if (compares && c->flags.zf() != (How == Repeat::while_equal)) {
        ++n;
        break;
      }
      // It may have overwritten its own code: then the new code runs.
      if (c->wrote_code && p.count(c) != 0) [[unlikely]] {
        note_elements<What>(c, n + 1, false);
        return leave_for(op, c, Stop::again);
      }
    }
    note_elements<What>(c, n, true);
    look_at_kick(c);
  }
  VPMU_NEXT(op, c);
}

template <String What, class Pointers>
Run of_pointers(Repeat repeat, unsigned bytes) {
  return by_size(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (repeat) {
      case Repeat::none: return string<What, Repeat::none, T, Pointers>;
      case Repeat::while_equal: return string<What, Repeat::while_equal, T, Pointers>;
      case Repeat::while_not_equal: return string<What, Repeat::while_not_equal, T, Pointers>;
    }
    return nullptr;
  });
}
template <String What>
Run of_kind(Repeat repeat, unsigned bytes, bool is_wide) {
  return is_wide ? of_pointers<What, Wide>(repeat, bytes) : of_pointers<What, Narrow>(repeat, bytes);
}

}  // namespace

Run op_string(String what, Repeat repeat, unsigned bytes, bool is_wide) {
  switch (what) {
    case String::movs: return of_kind<String::movs>(repeat, bytes, is_wide);
    case String::stos: return of_kind<String::stos>(repeat, bytes, is_wide);
    case String::lods: return of_kind<String::lods>(repeat, bytes, is_wide);
    case String::scas: return of_kind<String::scas>(repeat, bytes, is_wide);
    case String::cmps: return of_kind<String::cmps>(repeat, bytes, is_wide);
  }
  return nullptr;
}

}  // namespace vpmu::exec
