#pragma once
#include <string>
#include <string_view>

namespace vmm::tool {

/// Text in capitals, as placeholders and titles are written. ASCII letters alone.
std::string upper(std::string_view text);
/// Text as groff(7) and mandoc(1) print it, each character as it is: nothing in it is a request, an escape or a
/// typographer's quote, and hyphens can be copied into a shell. What is in backticks is bold, the backticks left out.
/// Line breaks stay; other control characters become question marks. UTF-8 stays as it is.
std::string roff(std::string_view text);
/// The same in bold and italic type; backticks stay.
std::string roff_bold(std::string_view text);
std::string roff_italic(std::string_view text);

/// Builds a page of man(7).
class ManualPage {
 public:
  /// `name` as in vpmu-run; `version` is shown at the foot, with the date, YYYY-MM-DD.
  ManualPage(std::string_view name, std::string_view version, std::string_view date);

  /// The functions below take text as roff() gives it, headings excepted.
  void section(std::string_view heading);
  void subsection(std::string_view heading);
  /// Begins a new paragraph.
  void paragraph(std::string_view text);
  /// A term, and what it means indented below it.
  void item(std::string_view term, std::string_view meaning);
  /// A command line as it is to be typed, with the lines not filled. Plain text.
  void command_line(std::string_view command);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace vmm::tool
