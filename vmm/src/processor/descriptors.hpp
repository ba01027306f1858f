#pragma once
#include "processor/soft_state.hpp"
#include "support/x86.hpp"
#include "vcpu/segments.hpp"

/// Descriptors as the processor reads, checks and marks them. SDM 3A 5.2 to 5.8. Each function returns nothing on
/// success, else the exception that it raises.
namespace vmm {

/// An exception about a selector: its index and table, and EXT. SDM 3A 6.13.
[[nodiscard]] inline Exception about(std::uint8_t vector, std::uint16_t selector, std::uint32_t ext = 0) {
  return {.vector = vector, .error_code = (selector & ~3U) | ext};
}

/// Reads the descriptor of `selector`. If there is none: `vector` about the selector.
[[nodiscard]] std::optional<Exception> fetch_descriptor(SoftState& state, GuestView& view, std::uint16_t selector,
                                                        Descriptor& out, std::uint8_t vector = x86::vector::GP,
                                                        std::uint32_t ext = 0);
/// Sets the accessed bit of a code or data segment, in memory and in `d`. SDM 3A 3.4.5.1.
[[nodiscard]] std::optional<Exception> mark_accessed(SoftState& state, GuestView& view, Descriptor& d);

/// Kinds of segments. SDM 3A table 3-1.
[[nodiscard]] constexpr bool is_code(const kvm_segment& s) { return s.s != 0 && (s.type & 8) != 0; }
[[nodiscard]] constexpr bool is_conforming(const kvm_segment& s) { return is_code(s) && (s.type & 4) != 0; }
[[nodiscard]] constexpr bool is_writable(const kvm_segment& s) { return s.s != 0 && (s.type & 0xA) == 2; }
[[nodiscard]] constexpr bool is_readable(const kvm_segment& s) { return s.s != 0 && (s.type & 0xA) != 8; }

/// Loads SS for privilege level `cpl` by a selector that is not null: MOV and POP, returns to outer levels (`vector`
/// #GP), and stacks of a TSS (#TS). SDM 2B MOV, 2A IRET, INT n.
[[nodiscard]] std::optional<Exception> stack_segment(SoftState& state, GuestView& view, std::uint16_t selector,
                                                     unsigned cpl, kvm_segment& out,
                                                     std::uint8_t vector = x86::vector::GP, std::uint32_t ext = 0);

}  // namespace vmm
