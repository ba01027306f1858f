#pragma once
#include "processor/soft_state.hpp"
#include "vcpu/guest_view.hpp"

/// Instructions that load CS: far branches, returns from handlers, fast system calls. All return nothing on success,
/// else the exception that they raise, with nothing changed but CR2 and accessed bits. SDM 3A 5.8. Call gates and tasks
/// are not supported: #GP.
namespace vmm {

/// Whether segments work as in real mode: the base is 16 times the selector.
[[nodiscard]] bool is_real_mode(const kvm_sregs& sregs);
/// Whether the processor is in IA-32e mode, and whether it runs 64-bit code. SDM 3A 4.1.
[[nodiscard]] bool is_long_mode(const kvm_sregs& sregs);
[[nodiscard]] bool is_64_bit_code(const kvm_sregs& sregs);
/// A segment register as real mode loads it. SDM 3B 20.1.1.
[[nodiscard]] kvm_segment real_mode_segment(std::uint16_t selector, bool code);
/// SS with a null selector, as 64-bit code has it in ring 0.
[[nodiscard]] kvm_segment null_stack(std::uint16_t selector, unsigned cpl);

/// The address of offset `at` in the stack; and sets the stack pointer, as wide as offsets are. SDM 3A 5.3.3.
[[nodiscard]] vpmu::GuestLinear stack_address(const kvm_sregs& sregs, std::uint64_t at);
void set_stack_pointer(SoftState& state, std::uint64_t to);

/// The target of a far branch.
struct FarPointer {
  std::uint16_t selector{};
  std::uint64_t offset{};
};
/// To the same privilege level. SDM 2A JMP.
[[nodiscard]] std::optional<Exception> far_jump(SoftState& state, GuestView& view, FarPointer to);
/// The same; pushes CS and `next`, `bytes` each. SDM 2A CALL.
[[nodiscard]] std::optional<Exception> far_call(SoftState& state, GuestView& view, FarPointer to, std::uint64_t next,
                                                std::size_t bytes);
/// RETF with words of `bytes`, releasing `more` bytes of the stack, to the same or an outer level. SDM 2B RET.
[[nodiscard]] std::optional<Exception> far_return(SoftState& state, GuestView& view, std::size_t bytes,
                                                  std::uint64_t more);
/// IRET with words of `bytes`. To an outer or the same privilege level only. SDM 2A IRET.
[[nodiscard]] std::optional<Exception> return_from_interrupt(SoftState& state, GuestView& view, std::size_t bytes);

/// SYSCALL from the instruction before `next`, and SYSRET, to 64-bit code or 32-bit code. SDM 2B SYSCALL, SYSRET. The
/// caller has checked EFER.SCE and CPL.
void system_call(SoftState& state, std::uint64_t next);
[[nodiscard]] std::optional<Exception> system_return(SoftState& state, bool to_64_bit_code);
/// SYSENTER, and SYSEXIT, whose CPL the caller has checked. SDM 2B SYSENTER, SYSEXIT.
[[nodiscard]] std::optional<Exception> system_enter(SoftState& state);
[[nodiscard]] std::optional<Exception> system_exit(SoftState& state, bool to_64_bit_code);

}  // namespace vmm
