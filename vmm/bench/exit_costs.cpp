// What the instructions cost that leave compiled code, on a vCPU without KVM, beside a loop that has none.
//   vmm_exit_costs [--tiny]     prints nanoseconds of this thread's CPU time for each; --tiny: few of them, to see that
//   it works
// Nothing here depends on time; what fails is a count of instructions that is not that of the code.
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "exec/tests/fixtures/assembled.hpp"
#include "fakes/fake_guest.hpp"
#include "soft/soft_backend.hpp"

namespace vmm::bench {
namespace {

constexpr std::uint64_t code_at = 0x40'0000, apic_at = 0x50'0000;

struct Kind {
  const char* name;
  std::vector<std::uint8_t> code;
  unsigned instructions;
  bool x2apic{};
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all{
      {"nothing", {}, 0},
      {"RDTSC", X86("rdtsc"), 1},
      {"CPUID", X86("xor %eax, %eax; cpuid"), 2},
      {"RDMSR of IA32_TSC_ADJUST", X86("mov $0x3B, %ecx; rdmsr"), 2},
      {"WRMSR of IA32_LSTAR", X86("mov $0xC0000082, %ecx; xor %eax, %eax; xor %edx, %edx; wrmsr"), 4},
      {"WRMSR of the x2APIC's self IPI", X86("mov $0x83F, %ecx; mov $0x61, %eax; xor %edx, %edx; wrmsr"), 4, true},
      {"MOV to CR8", X86("xor %eax, %eax; mov %rax, %cr8"), 2},
      {"MOV to CR0 that changes WP", X86("mov %cr0, %rax; btc $16, %rax; mov %rax, %cr0"), 3},
      {"MOV to CR4 that changes PGE", X86("mov %cr4, %rax; btc $7, %rax; mov %rax, %cr4"), 3},
      {"MOV to DR7", X86("mov $0x400, %eax; mov %rax, %dr7"), 2},
      {"IN", X86("mov $0x3FD, %dx; in (%dx), %al"), 2},
      {"load from the APIC's page", X86("mov (%rsi), %eax"), 1}};
  return all;
}

/// mov $TIMES, %r12d; KIND; dec %r12; jnz back to KIND; hlt
std::vector<std::uint8_t> loop_of(const Kind& kind, std::uint32_t times) {
  std::vector<std::uint8_t> code{0x41, 0xBC};
  const auto put = [&](std::uint32_t word) {
    for (unsigned i = 0; i < 4; ++i) code.push_back(static_cast<std::uint8_t>(word >> 8 * i));
  };
  put(times);
  code.insert(code.end(), kind.code.begin(), kind.code.end());
  code.insert(code.end(), {0x49, 0xFF, 0xCC, 0x0F, 0x85});
  put(static_cast<std::uint32_t>(-static_cast<std::int32_t>(kind.code.size() + 9)));
  code.push_back(0xF4);
  return code;
}

/// Seconds of CPU time.
double run(const Kind& kind, std::uint32_t times) {
  test::FakeGuest guest;
  guest.map(code_at, vpmu::page_size);
  guest.map_to(apic_at, 0xFEE0'0000);
  guest.store_code(code_at, loop_of(kind, times));
  guest.backend.special.apic_base = kind.x2apic ? 0xFEE0'0D00 : 0xFEE0'0900;
  guest.backend.registers.rip = code_at;
  guest.backend.registers.rsi = apic_at + 0x30;
  SoftBackend backend{guest.memory, CpuidTable{}, {.sregs = guest.backend.special, .regs = guest.backend.registers}};
  const std::clock_t begin = std::clock();
  for (;;) {
    const auto exit = backend.run();
    if (!exit) throw std::runtime_error{"the vCPU failed"};
    if (std::holds_alternative<Hlt>(*exit)) break;
    const auto* const read = std::get_if<PortRead>(&*exit);
    if (read == nullptr) throw std::runtime_error{"an exit that is none of a port"};
    std::ranges::fill(read->data, std::byte{0x60});
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  std::uint64_t instructions = 0;
  backend.visit_statistics([&](std::string_view name, std::uint64_t value) {
    if (name == "soft.instructions") instructions = value;
  });
  if (instructions != std::uint64_t{times} * (kind.instructions + 2) + 2)
    throw std::runtime_error{std::string{kind.name} + ": ran " + std::to_string(instructions) + " instructions"};
  return seconds;
}

int run_all(bool tiny) {
  const std::uint32_t times = tiny ? 300 : 300'000;
  double nothing = 0;
  for (const Kind& kind : kinds()) {
    const double each = run(kind, times) / times * 1e9;
    if (kind.code.empty()) nothing = each;
    std::printf("%-32s %8.1f ns\n", kind.name, each - (kind.code.empty() ? 0 : nothing));
  }
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace vmm::bench

int main(int argc, char** argv) {
  try {
    return vmm::bench::run_all(argc > 1 && std::string_view{argv[1]} == "--tiny");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "vmm_exit_costs: %s\n", e.what());
    return EXIT_FAILURE;
  }
}
