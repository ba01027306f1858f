#include "vcpu/segments.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

kvm_segment segment_in(std::uint64_t d, std::uint16_t selector) {
  kvm_segment s{};
  s.selector = selector;
  s.base = vpmu::Bits<39, 16>::get(d) | (vpmu::Bits<63, 56>::get(d) << 24);
  s.limit = static_cast<std::uint32_t>(vpmu::Bits<15, 0>::get(d) | (vpmu::Bits<51, 48>::get(d) << 16));
  s.type = static_cast<std::uint8_t>(vpmu::Bits<43, 40>::get(d));
  s.s = static_cast<std::uint8_t>(vpmu::Bits<44>::get(d));
  s.dpl = static_cast<std::uint8_t>(vpmu::Bits<46, 45>::get(d));
  s.present = static_cast<std::uint8_t>(vpmu::Bits<47>::get(d));
  s.avl = static_cast<std::uint8_t>(vpmu::Bits<52>::get(d));
  s.l = static_cast<std::uint8_t>(vpmu::Bits<53>::get(d));
  s.db = static_cast<std::uint8_t>(vpmu::Bits<54>::get(d));
  s.g = static_cast<std::uint8_t>(vpmu::Bits<55>::get(d));
  if (s.g != 0) s.limit = (s.limit << 12) | 0xFFF;
  return s;
}

}  // namespace

DescriptorRead read_descriptor(GuestView& view, const kvm_sregs& sregs, std::uint16_t selector) {
  const unsigned offset = selector & ~7U;
  const bool local = (selector & 4U) != 0;
  if (local ? sregs.ldt.unusable != 0 || (sregs.ldt.selector & ~3U) == 0 : offset == 0) return {};
  const std::uint64_t base = local ? sregs.ldt.base : sregs.gdt.base;
  if (offset + 7 > (local ? sregs.ldt.limit : sregs.gdt.limit)) return {};
  const vpmu::GuestLinear at{base + offset};
  std::uint64_t d = 0;
  if (const auto fault = view.read(at, std::as_writable_bytes(std::span{&d, 1})))
    return {.found = std::nullopt, .fault = fault};
  return {.found = Descriptor{.segment = segment_in(d, selector), .at = at}, .fault = std::nullopt};
}

std::optional<kvm_segment> segment_of(GuestView& view, const kvm_sregs& sregs, std::uint16_t selector) {
  auto read = read_descriptor(view, sregs, selector);
  if (!read.found) return std::nullopt;
  read.found->segment.type |= 1;  // accessed, as a loaded segment is
  return read.found->segment;
}

}  // namespace vmm
