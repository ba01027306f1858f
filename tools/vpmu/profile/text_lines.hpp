#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vmm::tool {

/// Assembles lines from a text that arrives in parts. A line longer than `most` is counted and dropped.
class TextLines {
 public:
  explicit TextLines(std::size_t max) : max_{max} {}

  /// Calls `take` with each complete line, without its newline.
  template <class Take>
  void add(std::string_view text, const Take& take) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      keep(text.substr(0, end));
      if (end == std::string_view::npos) return;
      finish(take);
      text.remove_prefix(end + 1);
    }
  }
  /// At the end of the text: calls `take` with the last line if it has no newline.
  template <class Take>
  void end(const Take& take) {
    if (is_long_ || !line_.empty()) finish(take);
  }
  [[nodiscard]] std::uint64_t left_out() const { return left_out_; }

 private:
  void keep(std::string_view part) {
    is_long_ = is_long_ || part.size() > max_ - line_.size();
    if (!is_long_) line_ += part;
  }
  template <class Take>
  void finish(const Take& take) {
    if (is_long_)
      ++left_out_;
    else
      take(std::string_view{line_});
    line_.clear();
    is_long_ = false;
  }

  std::size_t max_;
  std::string line_;
  bool is_long_{};
  std::uint64_t left_out_{};
};

}  // namespace vmm::tool
