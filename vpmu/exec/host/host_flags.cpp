#include "exec/host/host_flags.hpp"

#include <array>
#include <cstdint>

#include "vpmu/x86.hpp"

/// Looks at what this CPU does with flags, and the destination of a scan, that the manual leaves undefined.
namespace vpmu::exec {
namespace {

struct Done {
  std::uint64_t result, flags;
};
// NOLINTBEGIN(misc-const-correctness): the asm writes `high`.
#define VPMU_ON_THIS_CPU(name, instruction)                                                         \
  Done name(std::uint64_t a, std::uint64_t b, std::uint64_t flags) {                                \
    std::uint64_t high = 0;                                                                         \
    __asm__("sub $128, %%rsp; push %[f]; popfq; " instruction "; pushfq; pop %[f]; add $128, %%rsp" \
            : [f] "+r"(flags), "+a"(a), "+d"(high)                                                  \
            : "c"(b)                                                                                \
            : "cc", "memory");                                                                      \
    return {a, flags & x86::rflags::status};                                                        \
  }
VPMU_ON_THIS_CPU(do_and, "and %%rcx, %%rax")
VPMU_ON_THIS_CPU(do_or, "or %%ecx, %%eax")
VPMU_ON_THIS_CPU(do_xor, "xor %%cl, %%al")
VPMU_ON_THIS_CPU(do_test, "test %%rcx, %%rax")
VPMU_ON_THIS_CPU(do_shl, "shl $5, %%rax")
VPMU_ON_THIS_CPU(do_shr, "shr $5, %%rax")
VPMU_ON_THIS_CPU(do_sar, "sar $5, %%rax")
VPMU_ON_THIS_CPU(do_shl_cl, "shl %%cl, %%rax")
VPMU_ON_THIS_CPU(do_rol, "rol $5, %%rax")
VPMU_ON_THIS_CPU(do_ror, "ror $5, %%rax")
VPMU_ON_THIS_CPU(do_bt, "bt %%rcx, %%rax")
VPMU_ON_THIS_CPU(do_btc, "btc $5, %%rax")
VPMU_ON_THIS_CPU(do_mul, "mul %%rcx")
VPMU_ON_THIS_CPU(do_imul, "imul %%ecx")
VPMU_ON_THIS_CPU(do_bsf, "bsf %%ecx, %%eax")
VPMU_ON_THIS_CPU(do_bsr, "bsr %%ecx, %%eax")
VPMU_ON_THIS_CPU(do_bsf_short, "bsf %%cx, %%ax")
#undef VPMU_ON_THIS_CPU
// NOLINTEND(misc-const-correctness)

constexpr bool top(std::uint64_t value) { return value >> 63 != 0; }
constexpr bool of(const Done& d) { return x86::rflags::OF::test(d.flags); }
constexpr bool cf(const Done& d) { return x86::rflags::CF::test(d.flags); }

void look(HostFlags& found, std::uint64_t a, std::uint64_t b, std::uint64_t flags) {
  for (const auto& d : {do_and(a, b, flags), do_or(a, b, flags), do_xor(a, b, flags), do_test(a, b, flags)})
    found.logic = found.logic && !x86::rflags::AF::test(d.flags);
  const std::uint64_t count = b % 63 + 1;
  const Done shl = do_shl(a, 0, flags);
  const Done shl_cl = do_shl_cl(a, count, flags);
  const Done shr = do_shr(a, 0, flags);
  const Done sar = do_sar(a, 0, flags);
  for (const Done& d : {shl, shl_cl}) found.shift = found.shift && of(d) == (top(d.result) != cf(d));
  found.shift = found.shift && !of(shr) && !of(sar);
  for (const Done& d : {shl, shl_cl, shr, sar}) found.shift_af = found.shift_af && !x86::rflags::AF::test(d.flags);
  const Done rol = do_rol(a, 0, flags);
  const Done ror = do_ror(a, 0, flags);
  found.rotate =
      found.rotate && of(rol) == (top(rol.result) != cf(rol)) && of(ror) == (top(ror.result) != top(ror.result << 1));
  constexpr std::uint64_t carry = x86::rflags::CF::mask;
  constexpr std::uint64_t both = x86::rflags::CF::mask | x86::rflags::OF::mask;
  for (const Done& d : {do_bt(a, b, flags), do_btc(a, b, flags)})
    found.bit = found.bit && ((d.flags ^ flags) & x86::rflags::status & ~carry) == 0;
  for (const Done& d : {do_mul(a, b, flags), do_imul(a, b, flags)})
    found.multiply = found.multiply && ((d.flags ^ flags) & x86::rflags::status & ~both) == 0;
  for (const Done& d : {do_bsf(a, 0, flags), do_bsr(a, 0, flags), do_bsf_short(a, 0, flags)})
    found.scan = found.scan && d.result == a;
}

HostFlags look() {
  HostFlags found{
      .logic = true, .shift = true, .shift_af = true, .rotate = true, .bit = true, .multiply = true, .scan = true};
  std::uint64_t value = 0x9E37'79B9'7F4A'7C15;
  const auto next = [&] {
    value ^= value << 13;
    value ^= value >> 7;
    return value ^= value << 17;
  };
  constexpr unsigned times = 200;
  constexpr std::uint64_t always = 0x202;
  for (unsigned n = 0; n < times; ++n) {
    const std::uint64_t a = next() >> next() % 64;
    const std::uint64_t b = next() >> next() % 64;
    look(found, a, b, (next() & x86::rflags::status) | always);
  }
  return found;
}

}  // namespace

const HostFlags& host_flags() {
  static const HostFlags found = look();
  return found;
}

}  // namespace vpmu::exec
