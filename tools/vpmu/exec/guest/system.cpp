#include "exec/guest/system.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace vmm::tool::guest {

std::string text_of(const Error& error) {
  std::string line = error.what;
  if (error.system_errno != 0) {
    const char* const reason = ::strerrordesc_np(error.system_errno);
    line += ": ";
    line += reason != nullptr ? std::string{reason} : "error " + std::to_string(error.system_errno);
  }
  if (!error.advice.empty()) line += "; " + error.advice;
  return line;
}

Result<Fd> open_file(const std::string& path, int flags) {
  Fd file{::open(path.c_str(), flags | O_CLOEXEC)};
  if (!file.valid()) return host_error("opening " + path, errno);
  return file;
}

Result<std::string> read_file(const std::string& path) {
  VMM_ASSIGN(const Fd file, open_file(path, O_RDONLY));
  std::string text;
  for (std::array<char, 4096> part{};;) {
    const ssize_t bytes = ::read(file.get(), part.data(), part.size());
    if (bytes < 0) return host_error("reading " + path, errno);
    if (bytes == 0) return text;
    text.append(part.data(), static_cast<std::size_t>(bytes));
  }
}

Result<void> write_file(const std::string& path, std::string_view text) {
  VMM_ASSIGN(const Fd file, open_file(path, O_WRONLY));
  if (::write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
    return host_error("writing to " + path, errno);
  return {};
}

namespace {

/// `priority` as in syslog(2).
void log_with(char priority, std::string_view text) {
  // Without the newline the kernel would wait for the rest of the line.
  const auto written =
      write_file("/dev/kmsg", std::string{'<', priority, '>'} + "vpmu exec: " + std::string{text} + "\n");
  static_cast<void>(written);
}

}  // namespace

void log(std::string_view text) { log_with('6', text); }
void log_error(std::string_view text) { log_with('3', text); }

long now() {
  constexpr long milliseconds = 1000;
  constexpr long nanoseconds = 1'000'000;
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * milliseconds + time.tv_nsec / nanoseconds;
}

}  // namespace vmm::tool::guest
