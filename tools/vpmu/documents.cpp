#include "documents.hpp"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "command_line.hpp"
#include "completion.hpp"
#include "files/output_file.hpp"
#include "manual.hpp"
#include "shared/output.hpp"
#include "support/result.hpp"
#include "vpmu_commit.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

/// The command that the shells' scripts call.
constexpr auto asked = "__complete";

Result<void> write_page(const fs::path& path, const std::string& text) {
  VMM_ASSIGN(auto file, OutputFile::open(path, {.what = "the manual page", .advice = "give a writable directory"}));
  return file.replace(text);
}

Result<void> write_manual(const CommandLine& app, const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (error)
    return usage_error("cannot make the directory " + printable(directory) + ": " + error.message(),
                       "give a writable directory");
  for (const Page& page : manual_pages(app.describe(), {.version = "vpmu " VPMU_VERSION, .date = commit_date}))
    VMM_TRY(write_page(fs::path{directory} / page.name, page.text));
  return {};
}

void add_completion(CommandLine& app, int& exit_code) {
  auto shell = std::make_shared<std::string>();
  Command completion =
      app.add_command("completion", "print the script with which a shell completes vpmu's command lines");
  completion.add_option("shell", *shell, "which shell").required().one_of(completion_shells());
  completion.set_footer(
      "The script asks the program for each word, so another version of the program needs no new script.");
  completion.set_exit_codes({{"0", "done"}, {"1", "standard output could not be written"}, {"2", "wrong use"}});
  completion.add_example("vpmu completion bash", "prints the script for bash");
  completion.add_example("source <(vpmu completion bash)", "completes command lines in this bash, or in this zsh");
  completion.add_example("vpmu completion fish >~/.config/fish/completions/vpmu.fish",
                         "completes command lines in every fish of this user");
  completion.when_given([shell, &exit_code] {
    print(completion_script(*shell, "vpmu", asked).value_or(""));
    exit_code = 0;
  });
}

void add_manual(CommandLine& app, int& exit_code) {
  auto directory = std::make_shared<std::string>();
  Command manual = app.add_command("manual", "write vpmu's manual pages to a directory");
  manual.add_option("directory", *directory, "where to write them; created if missing").required().takes_file();
  manual.set_exit_codes({{"0", "done"}, {"1", "the host failed"}, {"2", "wrong use"}});
  manual.add_example("vpmu manual DIR", "writes the manual pages to a directory; `man -l DIR/vpmu-run.1` shows one");
  manual.when_given(
      [&app, directory, &exit_code] { exit_code = explain("vpmu manual", write_manual(app, *directory)); });
}

void add_asked(CommandLine& app, int& exit_code) {
  auto words = std::make_shared<std::vector<std::string>>();
  Command complete = app.add_command(asked, "print the candidates for the last word");
  complete.hide();
  complete.add_option("words", *words, "the words, after a --").required();
  complete.when_given([&app, words, &exit_code] {
    print(to_text(tool::complete(app.describe(), *words)));
    exit_code = 0;
  });
}

}  // namespace

void add_documents(CommandLine& app, int& exit_code) {
  add_completion(app, exit_code);
  add_manual(app, exit_code);
  add_asked(app, exit_code);
}

}  // namespace vmm::tool
