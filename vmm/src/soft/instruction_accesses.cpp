#include "soft/instruction_accesses.hpp"

#include <algorithm>
#include <cstring>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

/// Of CMPS, which has its operands at RSI and, in ES, at RDI, and one of them in `load`.
std::optional<MemoryOperand> second_load(const Instruction& i) {
  constexpr std::int8_t es = 0, rsi = 6, rdi = 7;
  if (!i.load || i.load->base != rsi || i.store || i.accesses.loads != 2) return std::nullopt;
  MemoryOperand other = *i.load;
  other.base = rdi;
  other.segment = i.load->linear_bytes == 4 ? es : std::int8_t{-1};
  return other;
}

/// BT and its like: a bit offset in a register moves the address. SDM 2A BT.
bool is_bit_string(const Instruction& i) { return i.load && i.mnemonic.starts_with("bt"); }

std::uint64_t address_of(const MemoryOperand& m, const Instruction& i, const SoftState& s) {
  return operand_address(m, i, instruction_pointer(s.regs, s.sregs), s.regs, s.sregs).value();
}

/// The addresses of a gather's elements; `base` is its operand's address without an index.
std::vector<Access> gathered(const Gather& g, std::uint64_t base, unsigned scale,
                             const vpmu::exec::VectorState& vectors) {
  const auto element = [&](unsigned number, std::size_t at, std::size_t bytes) {
    constexpr std::size_t half = 16;
    const std::byte* const from = at < half
                                      ? vectors.legacy.data() + vpmu::exec::VectorState::xmm_at + half * number + at
                                      : vectors.upper[number].data() + (at - half);
    std::uint64_t value{};
    std::memcpy(&value, from, bytes);
    return bytes == 8 ? static_cast<std::int64_t>(value) : std::int64_t{static_cast<std::int32_t>(value)};
  };
  std::vector<Access> all;
  for (std::size_t n = 0; n < g.count; ++n)
    if (element(g.mask, n * g.element, g.element) < 0)
      all.push_back(
          {.at = base + scale * static_cast<std::uint64_t>(element(g.index, n * g.index_element, g.index_element)),
           .bytes = g.element});
  return all;
}

}  // namespace

std::vector<Access> accesses_of(const Instruction& i, const SoftState& s) {
  if (i.gather && i.load) return gathered(*i.gather, address_of(*i.load, i, s), i.load->scale, s.vectors);
  std::vector<Access> all;
  const auto add = [&](const std::optional<MemoryOperand>& m, bool write) {
    if (!m) return;
    constexpr std::int8_t rsp = 4, rbp = 5;
    const bool stack = (m->base == rsp || m->base == rbp) && m->segment < 0;
    all.push_back(
        {.at = address_of(*m, i, s), .bytes = std::max<std::uint16_t>(m->bytes, 1), .write = write, .stack = stack});
  };
  add(i.read(), false);
  add(i.store, true);
  return all;
}

std::vector<Access> reached_accesses(const Instruction& i, const SoftState& s,
                                     const std::optional<vpmu::exec::MissingAccess>& missing) {
  const bool is_bits = missing && is_bit_string(i);
  std::vector<Access> all;
  if (!i.partial && !is_bits) all = accesses_of(i, s);
  if (const auto second = second_load(i)) all.push_back({.at = address_of(*second, i, s), .bytes = second->bytes});
  if (!missing) return all;
  const std::uint16_t bytes = i.partial || !i.load ? 1 : std::max<std::uint16_t>(i.load->bytes, 1);
  if (is_bits) all.push_back({.at = missing->at, .bytes = bytes});
  if (!is_bits || i.store)
    all.push_back({.at = missing->at, .bytes = bytes, .write = is_bits || missing->write, .stack = false});
  return all;
}

unsigned count_bytes(const Instruction& i) {
  return i.load ? i.load->address_bytes : i.store ? i.store->address_bytes : 8;
}

bool repeats(const Instruction& i, const kvm_regs& regs) {
  return i.rep && (regs.rcx & vpmu::low_bits(8 * count_bytes(i))) > 1;
}

}  // namespace vmm
