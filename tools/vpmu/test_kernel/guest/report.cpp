#include "test_kernel/guest/report.hpp"

#include <array>
#include <cstdio>
#include <cstring>

namespace vmm::tool::checker {
namespace {

std::string formatted(const char* format, std::uint64_t number) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), format, static_cast<unsigned long>(number));
  return text.data();
}

/// Makes the text one field on one line.
std::string field(std::string_view text) {
  std::string clean{text};
  for (char& character : clean)
    if (character == '\t' || character == '\n' || character == '\r') character = ' ';
  return clean;
}

}  // namespace

std::string decimal(std::uint64_t number) { return formatted("%lu", number); }
std::string hexadecimal(std::uint64_t number) { return formatted("%#lx", number); }
std::string refusal(int error) { return std::string{"refused: "} + ::strerror(error); }

void Report::check(std::string_view name, bool holds, std::string_view expected, std::string_view seen) {
  if (name == wrong_) return line(name, holds ? "fail" : "pass", "not " + std::string{expected}, seen);
  line(name, holds ? "pass" : "fail", expected, seen);
}

void Report::equal(std::string_view name, std::uint64_t expected, std::uint64_t seen) {
  equal(name, decimal(expected), decimal(seen));
}

void Report::skip(std::string_view name, std::string_view why) { line(name, "skip", why, ""); }

void Report::end() const { std::printf("END\t%u\n", count_); }

void Report::line(std::string_view name, std::string_view outcome, std::string_view expected, std::string_view seen) {
  std::printf("CHECK\t%s\t%s\t%s\t%s\n", field(name).c_str(), std::string{outcome}.c_str(), field(expected).c_str(),
              field(seen).c_str());
  std::fflush(stdout);
  ++count_;
}

}  // namespace vmm::tool::checker
