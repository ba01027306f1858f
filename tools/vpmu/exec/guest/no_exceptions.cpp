// The functions that the standard library calls to throw, for a program without exceptions. The library's own versions
// would link the unwinder and the locales: a megabyte, and some thousand instructions before main().

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace {

[[noreturn]] void end_process(const char* why) {
  const auto ignored = ::write(STDERR_FILENO, why, std::strlen(why));
  static_cast<void>(ignored);
  ::_exit(1);  // the kernel then panics and says that init has ended
}

void* allocate(std::size_t bytes) {
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) end_process("vpmu exec: init has no memory\n");
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

// NOLINTBEGIN(bugprone-reserved-identifier,misc-use-internal-linkage): the names are the library's
namespace std {
[[noreturn]] void __throw_length_error(const char* what) { end_process(what); }
[[noreturn]] void __throw_logic_error(const char* what) { end_process(what); }
[[noreturn]] void __throw_out_of_range_fmt(const char* what, ...) { end_process(what); }
[[noreturn]] void __throw_bad_alloc() { end_process("vpmu exec: init has no memory\n"); }
[[noreturn]] void __throw_bad_array_new_length() { end_process("vpmu exec: init has no memory\n"); }
[[noreturn]] void __throw_bad_function_call() { end_process("vpmu exec: init calls nothing\n"); }
}  // namespace std
// NOLINTEND(bugprone-reserved-identifier,misc-use-internal-linkage)
