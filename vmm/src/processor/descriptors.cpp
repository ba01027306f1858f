#include "processor/descriptors.hpp"

#include "processor/exceptions.hpp"
#include "support/x86.hpp"

namespace vmm {

std::optional<Exception> fetch_descriptor(SoftState& state, GuestView& view, std::uint16_t selector, Descriptor& out,
                                          std::uint8_t vector, std::uint32_t ext) {
  const DescriptorRead read = read_descriptor(view, state.sregs, selector);
  if (read.fault) return page_fault(state, *read.fault);
  if (!read.found) return about(vector, selector, ext);
  out = *read.found;
  return std::nullopt;
}

std::optional<Exception> mark_accessed(SoftState& state, GuestView& view, Descriptor& d) {
  constexpr std::uint64_t type_at = 5;  // the byte of the type, in the descriptor
  if (d.segment.s == 0 || (d.segment.type & 1) != 0) return std::nullopt;
  std::byte byte{};
  const vpmu::GuestLinear at = d.at + type_at;
  if (const auto fault = view.read(at, std::span{&byte, 1})) return page_fault(state, *fault);
  byte |= std::byte{1};
  if (const auto fault = view.write(at, std::span{&byte, 1})) return page_fault(state, *fault);
  d.segment.type |= 1;
  return std::nullopt;
}

std::optional<Exception> stack_segment(SoftState& state, GuestView& view, std::uint16_t selector, unsigned cpl,
                                       kvm_segment& out, std::uint8_t vector, std::uint32_t ext) {
  Descriptor d;
  if (const auto fault = fetch_descriptor(state, view, selector, d, vector, ext)) return fault;
  if ((selector & 3U) != cpl || !is_writable(d.segment) || d.segment.dpl != cpl) return about(vector, selector, ext);
  if (d.segment.present == 0) return about(x86::vector::SS, selector, ext);
  if (const auto fault = mark_accessed(state, view, d)) return fault;
  out = d.segment;
  return std::nullopt;
}

}  // namespace vmm
