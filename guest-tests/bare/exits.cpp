// Does one thing 4000 times and then writes a letter, over and over: the times between letters show what one costs.
#include "bare.hpp"

extern "C" {
volatile bool bare_faulted;
}

namespace {

constexpr unsigned times = 4000;
template <class What>
void repeat(char letter, What what) {
  for (unsigned n = 0; n < times; ++n) what();
  bare::put(letter);
}

#ifndef WITH_PMU
void one_round() {
  constexpr unsigned long rounds_of_nothing = 40'000'000;
  repeat('i', [] { bare::cpuid(0); });
  repeat('p', [] { bare::in(bare::serial_line_status); });
  for (unsigned long n = 0; n < rounds_of_nothing; ++n) asm volatile("");
  bare::put('l');
}
#else
void one_round() {
  constexpr std::uint32_t pmc0 = 0xC1, select0 = 0x186, global_ctrl = 0x38F;
  constexpr std::uint64_t kernel_instructions = 0x4200C0;
  repeat('r', [] { bare::rdmsr(pmc0); });
  repeat('w', [] { bare::wrmsr(select0, 0); });
  bare::wrmsr(select0, kernel_instructions);
  bare::wrmsr(global_ctrl, 1);
  repeat('c', [] { bare::rdmsr(pmc0); });
  bare::wrmsr(global_ctrl, 0);
  bare::wrmsr(select0, 0);
  bare::rdmsr(pmc0);
  bare::wrmsr(global_ctrl, 1);
}
#endif

}  // namespace

extern "C" void bare_main() {
  bare::set_up_serial();
  bare::catch_gp();  // as a kernel does: our PMU looks for that handler
  for (;;) one_round();
}
