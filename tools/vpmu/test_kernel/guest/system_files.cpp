#include "test_kernel/guest/system_files.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <charconv>

#include "kvm/fd.hpp"

namespace vmm::tool::checker {

std::string read_text(const std::string& path) {
  const Fd file{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t bytes = 0; file.valid() && (bytes = ::read(file.get(), part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<std::size_t>(bytes));
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string core_pmu_path(std::string_view name) { return "/sys/bus/event_source/devices/cpu/" + std::string{name}; }

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

std::vector<std::string> kernel_log() {
  // Linux Documentation/ABI/testing/dev-kmsg: each read gives one record, "level,number,time,flags;text".
  const Fd file{::open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  std::vector<std::string> lines;
  std::array<char, 8192> record{};
  for (ssize_t bytes = 0; file.valid() && (bytes = ::read(file.get(), record.data(), record.size())) > 0;) {
    std::string_view text{record.data(), static_cast<std::size_t>(bytes)};
    text.remove_prefix(std::min(text.find(';'), text.size() - 1) + 1);
    lines.emplace_back(text.substr(0, text.find('\n')));
  }
  return lines;
}

unsigned long counter_interrupts() {
  const std::string text = read_text("/proc/interrupts");
  std::size_t at = text.find("PMI:");
  if (at == std::string::npos) return 0;
  unsigned long sum = 0;
  for (at += 4; (at = text.find_first_not_of(' ', at)) != std::string::npos;) {
    unsigned long number = 0;
    const auto [stopped, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
    if (error != std::errc{}) break;
    sum += number;
    at = static_cast<std::size_t>(stopped - text.data());
  }
  return sum;
}

}  // namespace vmm::tool::checker
