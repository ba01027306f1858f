#pragma once
#include <string>
#include <vector>

#include "command_line.hpp"

namespace vmm::tool::test {

/// A program with one of each kind of option and command.
class SampleProgram {
 public:
  SampleProgram() {
    app_.add_flag("--version", version_, "tell the version");
    add_boot();
    add_nested();
    Command hidden = app_.add_command("secret", "not for users");
    hidden.add_flag("--invisible", version_, "");
    hidden.hide();
  }

  [[nodiscard]] CommandDescription describe() const { return app_.describe(); }
  /// Why the line is wrong.
  [[nodiscard]] std::string refused(const std::string& line) { return app_.parse(line).message; }

 private:
  void add_boot() {
    Command boot = app_.add_command("boot", "boot it");
    Command from = boot.add_group("start", "a kernel or a snapshot");
    from.add_option("--kernel", text_, "the kernel").takes_file();
    const Argument restore = from.add_option("--restore", text_, "the snapshot").takes_file();
    from.require_options(1);
    boot.add_option("-m,--model", model_, "CPU model").shows_default().suggests({"haswell", "skylake"});
    boot.add_option("--accel", text_, "by what").one_of({"kvm", "soft"}).excludes(restore);
    boot.add_option("--cpus", number_, "how many").within(1U, 4U);
    boot.add_option("--policy", list_, "NAME=VALUE").suggests({"fault=drop", "fault=inject", "time=real"});
    boot.add_option("--events", text_, "all, or a file").takes_file().suggests({"all"});
    boot.add_option("command", list_, "the command").required().takes_command();
    boot.set_footer("See `sample report`.");
    boot.set_exit_codes({{.code = "0", .meaning = "good"}, {.code = "1", .meaning = "bad"}});
    boot.add_example("sample boot -- .x", "runs it");
  }

  void add_nested() {
    Command report = app_.add_command("report", "reports");
    Command show = report.add_command("show", "show one");
    show.add_option("file", text_, "the report").required();
    show.add_option("--format", text_, "of it").required().one_of({"json", "table"});
    report.add_command("merge", "merge them").add_option("--into", text_, "");
  }

  CommandLine app_{"a sample", "sample"};
  bool version_{};
  std::string text_, model_{"skylake"};
  std::vector<std::string> list_;
  unsigned number_{};
};

}  // namespace vmm::tool::test
