#include "test_kernel/guest/program.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "kvm/fd.hpp"

namespace vmm::tool::checker {
namespace {

constexpr int not_found = 127, signal_ended = 128;
constexpr unsigned patience_seconds = 120;
constexpr std::size_t max_output = 1U << 24U;

[[noreturn]] void become(const std::vector<std::string>& command, int output) {
  std::vector<std::string> copies = command;
  std::vector<char*> pointers;
  for (std::string& word : copies) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::alarm(patience_seconds);
  ::execvp(pointers[0], pointers.data());
  ::_exit(not_found);
}

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& command) {
  // A file and not a pipe, because processes that the program leaves behind may keep a pipe open.
  const Fd output{::memfd_create("output", MFD_CLOEXEC)};
  if (!output.valid()) return {.code = not_found, .output = "no file for its output"};
  const pid_t process = ::fork();
  if (process == 0) become(command, output.get());
  int status = 0;
  if (process < 0 || ::waitpid(process, &status, 0) != process) return {.code = not_found, .output = "cannot fork"};
  ProgramEnd end{.code = WIFEXITED(status) ? WEXITSTATUS(status) : signal_ended + WTERMSIG(status), .output = {}};
  ::lseek(output.get(), 0, SEEK_SET);
  std::array<char, 4096> part{};
  for (ssize_t bytes = 0;
       end.output.size() < max_output && (bytes = ::read(output.get(), part.data(), part.size())) > 0;)
    end.output.append(part.data(), static_cast<std::size_t>(bytes));
  return end;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string_view last_line(std::string_view text) {
  std::string_view last;
  for (const std::string_view line : lines_of(text))
    if (!line.empty()) last = line;
  return last;
}

}  // namespace vmm::tool::checker
