#pragma once
#include <string>
#include <vector>

namespace CLI {
class App;
}  // namespace CLI

namespace vmm::tool {

class Notes;

/// What is wrong with a command line that the parser has refused, if it is a word that is no option or command: that
/// word, and the nearest one that is. Empty: it is something else. `words` are without the program's name.
std::string describe_unknown_word(const CLI::App& program, Notes& notes, const std::vector<std::string>& words);

}  // namespace vmm::tool
