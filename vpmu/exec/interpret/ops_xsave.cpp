#include <algorithm>

#include "exec/interpret/ops.hpp"
#include "exec/interpret/vector_unit.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"
#include "vpmu/bits.hpp"
#include "vpmu/x86.hpp"

/// XSAVE, XRSTOR and their relatives, of the components that VectorState keeps. SDM 1 chapter 13.
namespace vpmu::exec {
namespace {

constexpr std::uint64_t x87 = x86::xcr0::x87::mask, sse = x86::xcr0::SSE::mask, avx = x86::xcr0::AVX::mask;
constexpr std::uint64_t compacted_format = bit(63);
constexpr std::size_t header_at = 512, header_bytes = 64, upper_at = header_at + header_bytes;
constexpr std::size_t upper_bytes = sizeof(VectorState::upper), alignment = 64;
/// Bytes of an x87 register; the other six of its sixteen are reserved.
constexpr std::size_t x87_register = 10;
constexpr std::size_t reserved_byte_at = 5;

/// XSTATE_BV, XCOMP_BV and the bytes after them. SDM 1 13.4.2.
struct Header {
  std::uint64_t xstate_bv{}, xcomp_bv{};
  std::array<std::uint64_t, 6> reserved{};
};
static_assert(sizeof(Header) == header_bytes);

/// An XSAVE area of the guest's, whose bytes lie in one page or two.
class Area {
 public:
  Area(Core* c, std::uint64_t at) : c_{c}, at_{at} {}
  /// False: the engine must stop, Core::stop saying why.
  bool find(PagingAccess access, std::size_t bytes) {
    in_low_ = std::min<std::size_t>(bytes, page_size - at_ % page_size);
    low_ = find_slow_path(c_, at_, access, static_cast<unsigned>(in_low_));
    if (low_ == nullptr || in_low_ == bytes) return low_ != nullptr;
    high_ = find_slow_path(c_, at_ + in_low_, access, static_cast<unsigned>(bytes - in_low_));
    return high_ != nullptr;
  }
  void write(std::size_t at, std::span<const std::byte> from) const {
    const std::size_t first = at < in_low_ ? std::min(from.size(), in_low_ - at) : 0;
    if (first != 0) std::memcpy(low_ + at, from.data(), first);
    if (first < from.size()) std::memcpy(high_ + (at + first - in_low_), from.data() + first, from.size() - first);
  }
  void read(std::size_t at, std::span<std::byte> to) const {
    const std::size_t first = at < in_low_ ? std::min(to.size(), in_low_ - at) : 0;
    if (first != 0) std::memcpy(to.data(), low_ + at, first);
    if (first < to.size()) std::memcpy(to.data() + first, high_ + (at + first - in_low_), to.size() - first);
  }

 private:
  Core* c_;
  std::uint64_t at_;
  std::byte* low_{};
  std::byte* high_{};
  std::size_t in_low_{};
};

bool stop_for(Core* c, Stop why) {
  c->stop = why;
  return false;
}

/// The components that EDX:EAX asks for.
std::uint64_t requested(const Core* c) {
  const std::uint64_t mask = std::uint64_t{reg<std::uint32_t>(c, rdx * 8)} << 32 | reg<std::uint32_t>(c, rax * 8);
  return mask & c->vectors->xcr0;
}

/// Checks what can stop it besides memory: #UD and #NM, and components that are not kept here.
bool can_run(Core* c, XsaveForm form, std::uint64_t at) {
  if (!is_enabled(c, VectorUnit::xsave) || (form == XsaveForm::supervisor && c->cpl != 0))
    return stop_for(c, Stop::unsupported);
  return at % alignment == 0 || stop_for(c, Stop::fault);
}

void write_components(const Area& area, const VectorState& v, std::uint64_t saved) {
  const std::span<const std::byte> image{v.legacy};
  const auto part = [&](std::size_t at, std::size_t bytes) { area.write(at, image.subspan(at, bytes)); };
  if ((saved & x87) != 0) {
    part(0, VectorState::mxcsr_at);
    part(VectorState::st_at, VectorState::st_bytes);
  }
  if ((saved & sse) != 0) part(VectorState::xmm_at, VectorState::xmm_bytes);
  if ((saved & avx) != 0) area.write(upper_at, std::as_bytes(std::span{v.upper}));
}

/// MXCSR and the mask of its bits.
void write_mxcsr(const Area& area, const VectorState& v) {
  const std::array<std::uint32_t, 2> words{v.mxcsr(), writable_mxcsr()};
  area.write(VectorState::mxcsr_at, std::as_bytes(std::span{words}));
}

// SDM 1 13.7, 13.9 to 13.11. The modified optimization, which may leave out what did not change, is none here.
bool save(Core* c, const Op* op) {
  const auto form = static_cast<XsaveForm>(op->imm);
  const std::uint64_t at = address(op, c);
  if (!can_run(c, form, at)) return false;
  const VectorState& v = *c->vectors;
  const std::uint64_t asked = requested(c);
  // With another MXCSR than the initial one SSE counts as in use.
  const std::uint64_t in_use = v.in_use() | (v.mxcsr() != VectorState::initial_mxcsr ? sse : 0);
  const bool compacts = form == XsaveForm::compacted || form == XsaveForm::supervisor;
  const std::uint64_t saved = form == XsaveForm::standard ? asked : asked & in_use;
  Area area{c, at};
  if (!area.find(PagingAccess::write, (saved & avx) != 0 ? upper_at + upper_bytes : upper_at)) return false;
  write_components(area, v, saved);
  if ((compacts ? saved & sse : asked & (sse | avx)) != 0) write_mxcsr(area, v);
  std::array<std::uint64_t, 2> bits{asked & in_use, asked | compacted_format};
  if (!compacts) {
    area.read(header_at, std::as_writable_bytes(std::span{bits}));
    bits[0] = (bits[0] & ~asked) | (asked & in_use);
  }
  area.write(header_at, std::as_bytes(std::span{bits}.first(compacts ? 2 : 1)));
  return true;
}

/// Whether the header is one that XRSTOR takes. SDM 1 13.8, 13.12.
bool is_legal(const Header& h, XsaveForm form, std::uint64_t xcr0) {
  const bool compacted = (h.xcomp_bv & compacted_format) != 0;
  if (!compacted)
    return form != XsaveForm::supervisor && (h.xstate_bv & ~xcr0) == 0 && h.xcomp_bv == 0 && h.reserved[0] == 0;
  const bool knows = form == XsaveForm::compacted || form == XsaveForm::supervisor;
  const std::uint64_t has = h.xcomp_bv & ~compacted_format;
  return knows && (has & ~xcr0) == 0 && (h.xstate_bv & ~has) == 0 &&
         std::ranges::all_of(h.reserved, [](std::uint64_t word) { return word == 0; });
}

/// The x87 component of an image that a guest wrote: reserved bytes are not kept, nor are pointers.
void load_x87(VectorState& v, std::span<const std::byte> image) {
  std::memcpy(v.legacy.data(), image.data(), VectorState::fop_at);
  v.legacy[reserved_byte_at] = {};
  v.forget_pointers();
  for (std::size_t at = VectorState::st_at; at < VectorState::st_at + VectorState::st_bytes; at += 16)
    std::memcpy(v.legacy.data() + at, image.data() + at, x87_register);
  constexpr std::uint16_t always_one = 0x40, known = 0x1F7F;
  v.set_fcw((v.fcw() & known) | always_one);
  v.find_pending_x87();
}

void load_component(VectorState& v, std::uint64_t component, std::span<const std::byte> image) {
  if (component == x87) return load_x87(v, image);
  if (component == sse)
    std::memcpy(v.legacy.data() + VectorState::xmm_at, image.data() + VectorState::xmm_at, VectorState::xmm_bytes);
  if (component == avx) std::memcpy(v.upper.data(), image.data() + upper_at, upper_bytes);
}

// SDM 1 13.8, 13.12. Another vCPU may change the area meanwhile: it is read once.
bool restore(Core* c, const Op* op) {
  const auto form = static_cast<XsaveForm>(op->imm);
  const std::uint64_t at = address(op, c);
  if (!can_run(c, form, at)) return false;
  VectorState& v = *c->vectors;
  const std::uint64_t asked = requested(c);
  std::array<std::byte, upper_at + upper_bytes> image;
  const std::size_t bytes = (asked & avx) != 0 ? image.size() : upper_at;
  Area area{c, at};
  if (!area.find(PagingAccess::read, bytes)) return false;
  area.read(0, std::span{image}.first(bytes));
  Header header;
  std::memcpy(&header, image.data() + header_at, sizeof header);
  if (!is_legal(header, form, v.xcr0)) return stop_for(c, Stop::fault);
  const bool compacted = (header.xcomp_bv & compacted_format) != 0;
  std::uint32_t mxcsr = v.mxcsr();
  const auto read_mxcsr = [&] { std::memcpy(&mxcsr, image.data() + VectorState::mxcsr_at, sizeof mxcsr); };
  // The compacted format has MXCSR as a part of SSE; the standard one has it beside AVX, too, whatever is in use.
  if (!compacted && (asked & (sse | avx)) != 0) read_mxcsr();
  if (compacted && (asked & sse) != 0) {
    mxcsr = VectorState::initial_mxcsr;
    if ((header.xstate_bv & sse) != 0) read_mxcsr();
  }
  if ((mxcsr & ~writable_mxcsr()) != 0) return stop_for(c, Stop::fault);
  for (const std::uint64_t component : {x87, sse, avx}) {
    if ((asked & component) == 0) continue;
    if ((header.xstate_bv & component) != 0)
      load_component(v, component, image);
    else
      v.initialize(component);
  }
  v.set_mxcsr(mxcsr);
  c->compiled.forget_vectors();
  return true;
}

void xsave(const Op* op, Core* c) {
  if (!save(c, op)) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}
void xrstor(const Op* op, Core* c) {
  if (!restore(c, op)) VPMU_LEAVE(op, c);
  VPMU_NEXT(op, c);
}

}  // namespace

Run op_xsave() { return xsave; }
Run op_xrstor() { return xrstor; }

}  // namespace vpmu::exec
