#pragma once
#include <string>
#include <string_view>

namespace vmm::tool {

/// The text in capitals, for placeholders and titles. ASCII letters only.
std::string upper(std::string_view text);
/// Escapes text so that groff(7) and mandoc(1) print each character unchanged: nothing in it is a request, an escape or
/// a typographer's quote, and hyphens can be copied into a shell. Text in backticks becomes bold, without the
/// backticks. Line breaks stay; other control characters become question marks. UTF-8 is kept.
std::string roff(std::string_view text);
/// The same in bold and italic type; backticks are kept.
std::string roff_bold(std::string_view text);
std::string roff_italic(std::string_view text);

/// Builds a page of man(7).
class ManualPage {
 public:
  /// `name` as in vpmu-run; `version` is shown at the foot, with the date, YYYY-MM-DD.
  ManualPage(std::string_view name, std::string_view version, std::string_view date);

  /// The functions below take text from roff(), except for headings.
  void section(std::string_view heading);
  void subsection(std::string_view heading);
  /// Begins a new paragraph.
  void paragraph(std::string_view text);
  /// A term with its meaning indented below it.
  void item(std::string_view term, std::string_view meaning);
  /// A command line to be typed, on a line that is not filled. Takes plain text.
  void command_line(std::string_view command);

  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace vmm::tool
