#include <algorithm>
#include <bit>

#include "exec/interpret/ops.hpp"
#include "exec/interpret/vector_unit.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

/// Masked moves and gathers: what they reach depends on a vector register.
namespace vpmu::exec {
namespace {

constexpr std::size_t half = 16, widest = 2 * half;
using Wide = std::array<std::byte, widest>;

Wide read_vector(const VectorState& v, unsigned number, VectorUnit unit) {
  Wide out{};
  if (unit == VectorUnit::x87) {
    std::memcpy(out.data(), v.mmx(number).data(), v.mmx(number).size());
    return out;
  }
  std::memcpy(out.data(), v.legacy.data() + VectorState::xmm_at + half * number, half);
  std::memcpy(out.data() + half, v.upper[number].data(), half);
  return out;
}
void write_vector(VectorState& v, unsigned number, const Wide& value) {
  std::memcpy(v.legacy.data() + VectorState::xmm_at + half * number, value.data(), half);
  std::memcpy(v.upper[number].data(), value.data() + half, half);
}

/// The highest bit of each element of a mask.
unsigned elements_of(const Wide& mask, const MaskedForm& f) {
  unsigned found = 0;
  for (unsigned i = 0; i < f.count; ++i)
    if ((mask[(i + 1) * f.element - 1] & std::byte{0x80}) != std::byte{}) found |= 1U << i;
  return found;
}

bool may_run(Core* c, const MaskedForm& f) {
  if (!is_enabled(c, f.unit))
    c->stop = Stop::unsupported;
  else if (f.unit == VectorUnit::x87 && c->vectors->has_pending_x87())
    c->stop = Stop::float_error;
  else
    return true;
  return false;
}

/// Where an operand lies, as far as it is reached: from `begin` on, in one page or two.
struct Reached {
  std::byte* low{};
  std::byte* high{};
  std::size_t begin{}, in_low{};
  [[nodiscard]] std::byte* at(std::size_t offset) const {
    return offset - begin < in_low ? low + (offset - begin) : high + (offset - begin - in_low);
  }
};

/// Finds the bytes from the first element of `which`, which is not 0, to the last.
bool find(Core* c, std::uint64_t operand, PagingAccess access, unsigned which, const MaskedForm& f, Reached& r) {
  r.begin = static_cast<std::size_t>(std::countr_zero(which)) * f.element;
  const std::size_t end = static_cast<std::size_t>(std::bit_width(which)) * f.element;
  const std::uint64_t at = operand + r.begin;
  r.in_low = std::min<std::size_t>(end - r.begin, page_size - at % page_size);
  r.low = find_slow_path(c, at, access, static_cast<unsigned>(r.in_low));
  if (r.low == nullptr) return false;
  if (r.in_low == end - r.begin) return true;
  r.high = find_slow_path(c, at + r.in_low, access, static_cast<unsigned>(end - r.begin - r.in_low));
  return r.high != nullptr;
}

void copy_bytes(const Reached& r, std::size_t at, std::byte* ours, std::size_t bytes, bool store) {
  for (std::size_t i = at; i < at + bytes; ++i, ++ours) {
    if (store)
      *r.at(i) = *ours;
    else
      *ours = *r.at(i);
  }
}

// SDM 2C VMASKMOV, VPMASKMOV, 2B MASKMOVDQU, MASKMOVQ.
bool move(Core* c, const Op* op) {
  const auto f = std::bit_cast<MaskedForm>(op->imm);
  if (!may_run(c, f)) return false;
  VectorState& v = *c->vectors;
  const unsigned which = elements_of(read_vector(v, f.mask, f.unit), f);
  Wide data = f.store ? read_vector(v, f.data, f.unit) : Wide{};
  Reached reached;
  if (which != 0) {
    if (!find(c, address(op, c), f.store ? PagingAccess::write : PagingAccess::read, which, f, reached)) return false;
    for (std::size_t i = 0; i < f.count; ++i)
      if ((which >> i & 1) != 0) copy_bytes(reached, i * f.element, data.data() + i * f.element, f.element, f.store);
  }
  if (!f.store) write_vector(v, f.data, data);
  if (f.unit == VectorUnit::x87) v.enter_mmx();
  return true;
}

/// An element of the index register, sign-extended.
std::uint64_t index_at(const Wide& index, std::size_t i, const MaskedForm& f) {
  std::uint64_t value{};
  std::memcpy(&value, index.data() + i * f.index_element, f.index_element);
  return f.index_element == 8 ? value : static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(value)});
}

// SDM 2C VGATHERDPS and its relatives: elements that were there before a fault need not have been stored.
bool gather(Core* c, const Op* op) {
  const auto f = std::bit_cast<MaskedForm>(op->imm);
  if (!may_run(c, f)) return false;
  VectorState& v = *c->vectors;
  const Wide index = read_vector(v, f.index, f.unit);
  const unsigned which = elements_of(read_vector(v, f.mask, f.unit), f);
  const std::int64_t more = std::popcount(which) - 1;
  if (more > c->more.left) {
    c->stop = Stop::accesses;
    return false;
  }
  Wide data = read_vector(v, f.data, f.unit);
  std::fill(data.begin() + f.count * f.element, data.end(), std::byte{});
  // Each element's offset is as wide as addresses are.
  const std::uint64_t segment = reg<std::uint64_t>(c, op->seg), base = address(op, c) - segment,
                      offsets = address_mask(*op);
  for (std::size_t i = 0; i < f.count; ++i) {
    if ((which >> i & 1) == 0) continue;
    const std::uint64_t offset = base + (index_at(index, i, f) << (op->scale & scale_shift));
    const std::uint64_t at = linear_address(*op, (offset & offsets) + segment);
    std::uint64_t value{};
    if (f.element == 8) {
      if (!load(c, at, value)) return false;
    } else {
      std::uint32_t word{};
      if (!load(c, at, word)) return false;
      value = word;
    }
    std::memcpy(data.data() + i * f.element, &value, f.element);
  }
  write_vector(v, f.data, data);
  write_vector(v, f.mask, {});
  note_more(c, more, 0);
  return true;
}

void masked_move(const Op* op, Core* c) {
  if (!move(c, op)) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}
void gathers(const Op* op, Core* c) {
  if (!gather(c, op)) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}

}  // namespace

Run op_masked_move() { return masked_move; }
Run op_gather() { return gathers; }

}  // namespace vpmu::exec
