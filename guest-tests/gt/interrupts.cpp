#include "gt/interrupts.hpp"

#include <array>

#include "gt/asm.hpp"
#include "gt/test.hpp"
#include "vpmu/x86.hpp"

extern "C" {
extern const char gt_vector_stubs[];
extern const char gt_user_done[], gt_user_left[];
extern const std::uint64_t gt_kernel_rsp;
extern const std::uint64_t gt_fixups_begin[];
extern const std::uint64_t gt_fixups_end[];
void gt_enter_user(void (*function)(void*), void* argument, std::uint64_t user_stack);
void gt_interrupt(gt::InterruptFrame* frame);
}

namespace gt {

/// 64-bit TSS. SDM 3A figure 7-11.
struct [[gnu::packed]] TaskState {
  std::uint32_t reserved0;
  std::uint64_t rsp0, rsp1, rsp2;
  std::array<std::uint8_t, 76> rest;
};
static_assert(sizeof(TaskState) == 104);

}  // namespace gt

/// Also written by gt_enter_user.
extern "C" {
constinit gt::TaskState gt_tss{};
}

namespace gt {

constinit volatile std::uint64_t caught_vector = Outcome::none, caught_error_code = 0, caught_cr2 = 0;

namespace {

inline constexpr unsigned stub_bytes = 16;
inline constexpr std::uint64_t kernel_code = 0x08, kernel_data = 0x10, tss_selector = 0x28;

struct [[gnu::packed]] TableRegister {
  std::uint16_t limit;
  std::uint64_t base;
};

/// 64-bit interrupt gate. SDM 3A figure 6-7.
struct Gate {
  std::uint64_t low, high;
};

// Null, kernel code (08H), kernel data (10H), user data (18H), user code (20H), TSS (28H, two entries).
constinit std::array<std::uint64_t, 7> gdt{
    0, 0x00AF'9B00'0000'FFFF, 0x00CF'9300'0000'FFFF, 0x00CF'F300'0000'FFFF, 0x00AF'FB00'0000'FFFF, 0, 0};
constinit std::array<Gate, 256> idt{};
constinit std::array<InterruptHandler, 256> handlers{};
alignas(16) constinit std::array<std::byte, 16384> user_stack{};

Gate make_gate(const char* target) {
  const auto at = reinterpret_cast<std::uint64_t>(target);
  constexpr std::uint64_t attributes = 0x8E00;  // present, DPL 0, interrupt gate
  return {.low = (at & 0xFFFF) | (kernel_code << 16) | (attributes << 32) | ((at >> 16 & 0xFFFF) << 48),
          .high = at >> 32};
}

void load_tss() {
  const auto base = reinterpret_cast<std::uint64_t>(&gt_tss);
  gdt[5] = (sizeof(gt_tss) - 1) | ((base & 0xFF'FFFF) << 16) | (0x89ULL << 40) | ((base >> 24 & 0xFF) << 56);
  gdt[6] = base >> 32;
  asm volatile("ltr %w0" ::"r"(tss_selector));
}

void load_segments() {
  asm volatile(
      "push %0\n lea 1f(%%rip), %%rax\n push %%rax\n lretq\n1:\n"
      "mov $0x10, %%eax\n mov %%eax, %%ds\n mov %%eax, %%es\n mov %%eax, %%ss\n" ::"r"(kernel_code)
      : "rax", "memory");
}

/// Whether a `try_` form guards the instruction; if so, resumes after it.
bool resume_guarded(InterruptFrame& frame) {
  for (const std::uint64_t* fixup = gt_fixups_begin; fixup < gt_fixups_end; fixup += 2) {
    if (fixup[0] != frame.rip) continue;
    caught_vector = frame.vector;
    caught_error_code = frame.error_code;
    caught_cr2 = frame.vector == x86::vector::PF ? read_cr2() : 0;
    frame.rip = fixup[1];
    return true;
  }
  return false;
}

/// Whether code at CPL 3 has ended; if so, returns to gt_enter_user's caller.
bool leave_user(InterruptFrame& frame) {
  if (frame.vector != x86::vector::UD || frame.rip != reinterpret_cast<std::uint64_t>(gt_user_done)) return false;
  frame.rip = reinterpret_cast<std::uint64_t>(gt_user_left);
  frame.cs = kernel_code;
  frame.ss = kernel_data;
  frame.rsp = gt_kernel_rsp;
  return true;
}

}  // namespace

void share_interrupts() {
  const TableRegister gdtr{.limit = sizeof(gdt) - 1, .base = reinterpret_cast<std::uint64_t>(&gdt)};
  const TableRegister idtr{.limit = sizeof(idt) - 1, .base = reinterpret_cast<std::uint64_t>(&idt)};
  asm volatile("lgdt %0" ::"m"(gdtr));
  load_segments();
  asm volatile("lidt %0" ::"m"(idtr));
}

void set_up_interrupts() {
  for (unsigned v = 0; v < idt.size(); ++v) idt[v] = make_gate(gt_vector_stubs + v * stub_bytes);
  share_interrupts();
  load_tss();
}

void on_vector(std::uint64_t vector, InterruptHandler handler) { handlers[vector] = handler; }

void run_at_cpl3(void (*function)(void*), void* argument) {
  gt_enter_user(function, argument, reinterpret_cast<std::uint64_t>(user_stack.data() + user_stack.size()));
}

}  // namespace gt

void gt_interrupt(gt::InterruptFrame* frame) {
  if (const gt::InterruptHandler handler = gt::handlers[frame->vector]; handler != nullptr) return handler(*frame);
  if (frame->vector < 32 && (gt::resume_guarded(*frame) || gt::leave_user(*frame))) return;
  gt::Text{gt::message_text()} << "unexpected vector " << frame->vector << " at " << frame->rip << ", error code "
                               << frame->error_code << ", CR2 " << gt::read_cr2();
  gt::send_failure(__FILE_NAME__, __LINE__);
  gt::complete();
}
