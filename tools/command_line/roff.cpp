#include "roff.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace vmm::tool {
namespace {

/// ASCII characters that have a meaning in roff, or would be printed differently.
constexpr std::array<std::pair<char, std::string_view>, 7> escapes{
    {{'\\', "\\(rs"}, {'-', "\\-"}, {'"', "\\(dq"}, {'\'', "\\(aq"}, {'`', "\\(ga"}, {'^', "\\(ha"}, {'~', "\\(ti"}}};

/// A byte of UTF-8 beyond ASCII is kept: man(1) and mandoc(1) read it.
std::string escape_character(char c) {
  for (const auto& [character, escape] : escapes) {
    if (c == character) return std::string{escape};
  }
  if (c == '\t') return " ";
  const auto byte = static_cast<unsigned char>(c);
  return {byte < ' ' || byte == 0x7F ? '?' : c};
}

/// A line, or a part of one.
std::string escape_line(std::string_view line) {
  std::string escaped;
  for (std::size_t i = 0; i < line.size(); ++i) {
    escaped += escape_character(line[i]);
    // Allows a line break after a comma in a list without spaces.
    if (line[i] == ',' && i + 1 < line.size() && line[i + 1] != ' ') escaped += "\\:";
  }
  return escaped;
}

std::string in_font(char font, std::string_view text) {
  return text.empty() ? "" : fmt::format("\\f{}{}\\fR", font, escape_line(text));
}

/// Formats a line, with the text in backticks in bold. At its start a dot would be a request, and a space would break
/// the paragraph: both are escaped.
std::string line_with_code(std::string_view line) {
  line.remove_prefix(std::min(line.find_first_not_of(' '), line.size()));
  std::string text = line.starts_with('.') ? "\\&" : "";
  for (;;) {
    const auto begin = line.find('`');
    const auto end = begin == std::string_view::npos ? begin : line.find('`', begin + 1);
    if (end == std::string_view::npos) return text + escape_line(line);
    text += escape_line(line.substr(0, begin)) + in_font('B', line.substr(begin + 1, end - begin - 1));
    line.remove_prefix(end + 1);
  }
}

}  // namespace

std::string upper(std::string_view text) {
  std::string result{text};
  for (char& c : result) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  return result;
}

std::string roff(std::string_view text) {
  std::string lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    const std::string line = line_with_code(text.substr(0, end));
    if (!line.empty()) lines += (lines.empty() ? "" : "\n.br\n") + line;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

std::string roff_bold(std::string_view text) { return in_font('B', text); }

std::string roff_italic(std::string_view text) { return in_font('I', text); }

ManualPage::ManualPage(std::string_view name, std::string_view version, std::string_view date) {
  text_ = fmt::format(".TH \"{}\" 1 \"{}\" \"{}\"\n.nh\n.ad l\n", escape_line(upper(name)), date,
                      escape_line(version));  // keeps names from being broken at the end of a line
}

void ManualPage::section(std::string_view heading) { text_ += fmt::format(".SH \"{}\"\n", escape_line(heading)); }

void ManualPage::subsection(std::string_view heading) { text_ += fmt::format(".SS \"{}\"\n", escape_line(heading)); }

void ManualPage::paragraph(std::string_view text) {
  // The first paragraph of a section needs no macro, and mandoc would warn about one.
  const auto last = text_.rfind('\n', text_.size() - 2) + 1;
  const bool after_heading = std::string_view{text_}.substr(last).starts_with(".S");
  text_ += fmt::format("{}{}\n", after_heading ? "" : ".PP\n", text);
}

void ManualPage::item(std::string_view term, std::string_view meaning) {
  text_ += fmt::format(".TP\n{}\n{}\n", term, meaning.empty() ? "\\&" : meaning);
}

void ManualPage::command_line(std::string_view command) {
  text_ += fmt::format(".PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", roff_bold(command));
}

}  // namespace vmm::tool
