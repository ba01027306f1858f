#include "exec/control_lines.hpp"

#include <algorithm>
#include <charconv>

// The guest's init compiles this file too: no fmt, and no std::visit, which may throw.

namespace vmm::tool {
namespace {

constexpr int highest_signal = 64;
constexpr int highest_code = 255;

/// The words of a line, taken from its front.
class Words {
 public:
  explicit Words(std::string_view text) : rest_{text} {}
  [[nodiscard]] bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  /// A space and a number of at most `most`.
  template <class Number>
  [[nodiscard]] bool take(Number& number, Number max) {
    if (!take(" ")) return false;
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    if (error != std::errc{} || number > max || rest_.front() == '-') return false;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return true;
  }
  [[nodiscard]] bool end() const { return rest_.empty(); }
  [[nodiscard]] std::string_view rest() const { return rest_; }

 private:
  std::string_view rest_;
};

std::string words(const char* word, std::uint64_t number) { return std::string{word} + " " + std::to_string(number); }

std::string one_line(std::string text) {
  if (text.size() > LineBuffer::max_line_length / 2) text.resize(LineBuffer::max_line_length / 2);
  std::ranges::replace_if(text, [](char c) { return (c >= 0 && c < ' ') || c == 0x7F; }, '?');
  return text;
}

Failure no_line(const char* whose, std::string_view text) {
  return usage_error("'" + one_line(std::string{text.substr(0, 80)}) + "' is not a line that " + whose + " sends");
}

}  // namespace

std::string write_line(const HostLine& line) {
  if (const auto* const signal = std::get_if<SignalLine>(&line))
    return "signal " + std::to_string(signal->number) + "\n";
  if (const auto* const window = std::get_if<WindowLine>(&line))
    return words("window", window->size.rows) + " " + std::to_string(window->size.columns) + "\n";
  if (const auto* const eof = std::get_if<EofLine>(&line))
    return (eof->bytes ? words("eof", *eof->bytes) : "eof") + "\n";
  return "off\n";
}

std::string write_line(const GuestLine& line) {
  if (const auto* const written = std::get_if<WrittenLine>(&line))
    return words("written", written->output) + " " + std::to_string(written->error) + "\n";
  if (const auto* const exit = std::get_if<ExitLine>(&line)) return "exit " + std::to_string(exit->code) + "\n";
  if (const auto* const killed = std::get_if<KilledLine>(&line))
    return "killed " + std::to_string(killed->signal) + "\n";
  if (const auto* const error = std::get_if<ErrorLine>(&line)) return "error " + one_line(error->text) + "\n";
  return std::holds_alternative<ReadyLine>(line) ? "ready\n" : "started\n";
}

Result<HostLine> read_host_line(std::string_view text) {
  Words words{text};
  if (words.take("signal")) {
    SignalLine line;
    if (words.take(line.number, highest_signal) && words.end() && line.number > 0) return line;
  } else if (words.take("window")) {
    WindowLine line;
    if (words.take(line.size.rows, widest_terminal) && words.take(line.size.columns, widest_terminal) && words.end())
      return line;
  } else if (words.take("eof")) {
    if (words.end()) return EofLine{};
    std::uint64_t bytes = 0;
    if (words.take(bytes, UINT64_MAX) && words.end()) return EofLine{bytes};
  } else if (words.take("off") && words.end()) {
    return OffLine{};
  }
  return no_line("the host", text);
}

Result<GuestLine> read_guest_line(std::string_view text) {
  Words words{text};
  if (words.take("ready")) {
    if (words.end()) return ReadyLine{};
  } else if (words.take("started")) {
    if (words.end()) return StartedLine{};
  } else if (words.take("written")) {
    WrittenLine line;
    if (words.take(line.output, UINT64_MAX) && words.take(line.error, UINT64_MAX) && words.end()) return line;
  } else if (words.take("exit")) {
    ExitLine line;
    if (words.take(line.code, highest_code) && words.end()) return line;
  } else if (words.take("killed")) {
    KilledLine line;
    if (words.take(line.signal, highest_signal) && words.end() && line.signal > 0) return line;
  } else if (words.take("error ")) {
    return ErrorLine{one_line(std::string{words.rest()})};
  }
  return no_line("the guest", text);
}

std::optional<std::string> LineBuffer::take_line() {
  const std::size_t end = text_.find('\n');
  if (end == std::string::npos) {
    if (text_.size() > max_line_length) text_.clear();
    return std::nullopt;
  }
  std::string line = text_.substr(0, end);
  text_.erase(0, end + 1);
  return line;
}

}  // namespace vmm::tool
