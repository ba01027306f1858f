#include <algorithm>

#include "exec/alu.hpp"
#include "exec/dispatch.hpp"
#include "exec/select.hpp"
#include "exec/tap.hpp"

namespace vpmu::exec {
namespace {

/// Elements in one go. A longer one stops between two and goes on later, as an interrupt would make it on a CPU (SDM 2B
/// REP).
constexpr unsigned most_elements = 4096;

/// One element. False: the instruction must stop here.
template <String What, class T>
bool element(const Op* op, Core* c, std::uint64_t step) {
  const std::uint64_t from = c->r[rsi] + reg<std::uint64_t>(c, op->seg);
  T a{};
  T b{};
  if constexpr (What == String::movs) {
    if (!load(c, from, a) || !store(c, c->r[rdi], a)) return false;
  } else if constexpr (What == String::stos) {
    if (!store(c, c->r[rdi], reg<T>(c, rax * 8))) return false;
  } else if constexpr (What == String::lods) {
    if (!load(c, from, a)) return false;
    set_reg(c, rax * 8, a);
  } else if constexpr (What == String::scas) {
    if (!load(c, c->r[rdi], b)) return false;
    compute<Alu::cmp>(c->flags, reg<T>(c, rax * 8), b);
  } else {
    if (!load(c, from, a) || !load(c, c->r[rdi], b)) return false;
    compute<Alu::cmp>(c->flags, a, b);
  }
  if constexpr (What == String::movs || What == String::lods || What == String::cmps) c->r[rsi] += step;
  if constexpr (What != String::lods) c->r[rdi] += step;
  return true;
}

/// As many elements of MOVS or STOS as lie in pages that the TLB knows, at most `most`, upwards; 0: none, for element()
/// to find out why. Nobody observes.
template <String What, class T>
[[gnu::noinline]] std::uint64_t many(const Op* op, Core* c, std::uint64_t most) {
  const std::uint64_t to = c->r[rdi];
  const std::uint64_t from = c->r[rsi] + reg<std::uint64_t>(c, op->seg);
  const auto fit = [](std::uint64_t at) { return (page_size - at % page_size) / sizeof(T); };
  const std::uint64_t n = std::min({most, fit(to), What == String::movs ? fit(from) : most});
  const std::uint64_t bytes = n * sizeof(T);
  if (n == 0 || !can_write_quickly(c, to, bytes)) return 0;
  std::byte* const target = known_address(c, to);
  if constexpr (What == String::movs) {
    if (!can_read_quickly(c, from, bytes)) return 0;
    const std::byte* const source = known_address(c, from);
    // What it has stored it loads again where the target lies a little above the source.
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

template <String What, Repeat How, class T>
void string(const Op* op, Core* c) {
  const std::uint64_t step = (c->other_flags & rflags::DF) != 0 ? std::uint64_t{0} - sizeof(T) : sizeof(T);
  if constexpr (How == Repeat::none) {
    if (!element<What, T>(op, c, step)) VPMU_LEAVE(op, c);
  } else {
    constexpr bool compares = What == String::scas || What == String::cmps;
    for (unsigned n = 0; c->r[rcx] != 0; ++n) {
      if constexpr (What == String::movs || What == String::stos)
        if (step == sizeof(T) && c->tap == nullptr) {
          n += static_cast<unsigned>(many<What, T>(op, c, std::min<std::uint64_t>(c->r[rcx], most_elements - n)));
          if (c->r[rcx] == 0) break;
        }
      if (n == most_elements) return leave_for(op, c, Stop::again);
      if (!element<What, T>(op, c, step)) VPMU_LEAVE(op, c);
      if (c->tap != nullptr) [[unlikely]]
        note_element(*c);
      --c->r[rcx];
      if (compares && c->flags.zf() != (How == Repeat::while_equal)) break;
      // It may have been its own code: what goes on is what stands there now.
      if (c->wrote_code && c->r[rcx] != 0) [[unlikely]]
        return leave_for(op, c, Stop::again);
    }
    look_at_kick(c);
  }
  VPMU_NEXT(op, c);
}

template <String What>
Run of_kind(Repeat repeat, unsigned bytes) {
  return by_size(bytes, [&](auto t) -> Run {
    using T = decltype(t);
    switch (repeat) {
      case Repeat::none: return string<What, Repeat::none, T>;
      case Repeat::while_equal: return string<What, Repeat::while_equal, T>;
      case Repeat::while_not_equal: return string<What, Repeat::while_not_equal, T>;
    }
    return nullptr;
  });
}

}  // namespace

Run op_string(String what, Repeat repeat, unsigned bytes) {
  switch (what) {
    case String::movs: return of_kind<String::movs>(repeat, bytes);
    case String::stos: return of_kind<String::stos>(repeat, bytes);
    case String::lods: return of_kind<String::lods>(repeat, bytes);
    case String::scas: return of_kind<String::scas>(repeat, bytes);
    case String::cmps: return of_kind<String::cmps>(repeat, bytes);
  }
  return nullptr;
}

}  // namespace vpmu::exec
