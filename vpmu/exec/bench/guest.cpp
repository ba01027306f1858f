#include "guest.hpp"
#include "vpmu/x86.hpp"

#include <algorithm>
#include <ctime>
#include <stdexcept>
#include <string>

namespace vpmu::exec::bench {
namespace {

constexpr std::size_t stack_size = 1U << 20;
/// Where the function returns to in the engine: a UD2 in front of the code, which stops it.
constexpr std::size_t code_at = 16;

std::size_t in_pages(std::size_t bytes) { return (bytes + page_size - 1) / page_size * page_size; }

}  // namespace

double thread_seconds() {
  timespec t{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

Guest::Guest(std::span<const std::byte> code, std::size_t memory)
    : memory_at_{in_pages(code_at + code.size())},
      memory_size_{memory},
      ram_{memory_at_ + in_pages(memory) + stack_size, PROT_READ | PROT_WRITE | PROT_EXEC} {
  ram_.bytes()[0] = std::byte{0x0F};
  ram_.bytes()[1] = std::byte{0x0B};
  std::ranges::copy(code, ram_.bytes().begin() + code_at);
}

void Guest::clear() { std::fill(memory().begin(), memory().end(), std::byte{}); }

Outcome Guest::run_here(std::size_t entry, std::uint64_t work) {
  clear();
  const auto function =
      reinterpret_cast<std::uint64_t (*)(std::byte*, std::uint64_t)>(ram_.bytes().data() + code_at + entry);
  const double from = thread_seconds();
  const std::uint64_t result = function(memory().data(), work);
  return {result, {}, thread_seconds() - from};
}

Outcome Guest::run_in(Engine& engine, std::size_t entry, std::uint64_t work, const std::function<Stop()>& run) {
  clear();
  const std::uint64_t base = ram_.address();
  CpuState s;
  s.rip = base + code_at + entry;
  s.rflags = 2;
  s.paging.cr4 = x86::cr4::OSFXSR::mask | x86::cr4::OSXSAVE::mask;
  s.gpr[rdi] = base + memory_at_;
  s.gpr[rsi] = work;
  const std::size_t stack = ram_.bytes().size() - sizeof base;
  std::memcpy(ram_.bytes().data() + stack, &base, sizeof base);
  s.gpr[rsp] = base + stack;
  const double from = thread_seconds();
  engine.load(s);
  Stop stop = Stop::budget;
  while (stop == Stop::budget || stop == Stop::again) stop = run();
  const double seconds = thread_seconds() - from;
  const CpuState end = engine.state();
  if (stop != Stop::unsupported || end.rip != base)
    throw std::runtime_error{"the engine stopped " + std::to_string(end.rip - s.rip) + " bytes from the entry"};
  return {end.gpr[rax], engine.passed(), seconds};
}

}  // namespace vpmu::exec::bench
