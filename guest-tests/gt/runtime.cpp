#include <cstddef>
#include <cstdint>

#include "gt/apic.hpp"
#include "gt/asm.hpp"
#include "gt/interrupts.hpp"
#include "gt/paging.hpp"
#include "gt/test.hpp"

extern "C" {
extern const gt::LinkedTest gt_tests_begin[];
extern const gt::LinkedTest gt_tests_end[];
[[noreturn]] void gt_main(std::uint64_t index, std::uint64_t flags);

// Functions that compilers call by themselves in a freestanding program.
void* memset(void* to, int value, std::size_t size) {
  void* const result = to;
  asm volatile("rep stosb" : "+D"(to), "+c"(size) : "a"(value) : "memory");
  return result;
}
void* memcpy(void* to, const void* from, std::size_t size) {
  void* const result = to;
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(size)::"memory");
  return result;
}
int memcmp(const void* a, const void* b, std::size_t size) {
  const auto* x = static_cast<const unsigned char*>(a);
  const auto* y = static_cast<const unsigned char*>(b);
  for (std::size_t i = 0; i < size; ++i)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}
}

namespace gt {
namespace {

constinit Message message{};
constinit std::uint64_t boot_flags = 0;
constinit std::uint32_t checks = 0;

void send(Command command) {
  message.command = command;
  message.checks = checks;
  out32(command_port, static_cast<std::uint32_t>(reinterpret_cast<std::uint64_t>(&message)));
}

[[noreturn]] void stop() {
  for (;;) {
    disable_interrupts();
    halt();
  }
}

// The last parts of the path suffice and fit the field.
const char* short_path(const char* file) {
  std::size_t size = 0;
  while (file[size] != '\0') ++size;
  return size < message.file.size() ? file : file + size - (message.file.size() - 1);
}

}  // namespace

bool exact_counts() { return (boot_flags & boot_exact_counts) != 0; }
bool is_long() { return (boot_flags & boot_long) != 0; }

std::span<char> message_text() { return message.text; }
void count_check() { ++checks; }

void send_failure(const char* file, int line) {
  Text{message.file} << short_path(file);
  message.line = static_cast<std::uint32_t>(line);
  send(Command::fail);
}

void log(const char* text) {
  Text{message.text} << text;
  send(Command::log);
}

void skip(const char* reason) {
  Text{message.text} << reason;
  send(Command::skip);
  stop();
}

void complete() {
  send(Command::complete);
  stop();
}

void abort_test(const char* file, int line, const char* reason) {
  Text{message.text} << reason;
  send_failure(file, line);
  complete();
}

bool check(bool passed, const char* file, int line, const char* expression) {
  count_check();
  if (passed) return true;
  Text{message.text} << "does not hold: " << expression;
  send_failure(file, line);
  return false;
}

}  // namespace gt

void gt_main(std::uint64_t index, std::uint64_t flags) {
  gt::boot_flags = flags;
  gt::set_up_interrupts();
  gt::paging::set_up();
  gt::apic::enable();
  if (index >= static_cast<std::uint64_t>(gt_tests_end - gt_tests_begin))
    gt::abort_test(__FILE_NAME__, __LINE__, "the host asked for a test that this kernel does not have");
  gt_tests_begin[index].entry();
  gt::complete();
}
