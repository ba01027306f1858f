#include "control/protocol.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <string>

namespace vmm {
namespace {

class ProtocolTest : public testing::Test {
 protected:
  nlohmann::json ask(std::string_view line, Fd file = {}) {
    std::string reply;
    answer_request(line, handlers, std::move(file), [&](std::string answer) { reply = std::move(answer); });
    EXPECT_EQ(reply.find('\n'), std::string::npos) << "one line";
    return nlohmann::json::parse(reply);
  }
  int stops{0};
  static void write_to(const Fd& file, std::string_view text) {
    EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  /// Makes a request with a file, and returns the file's contents after it.
  std::string ask_with_file(std::string_view command) {
    const Fd file{::memfd_create("file", MFD_CLOEXEC)};
    last = ask(make_request(command), Fd{::dup(file.get())});
    std::string text(100, '\0');
    const auto got = ::pread(file.get(), text.data(), text.size(), 0);
    text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return text;
  }
  nlohmann::json last;
  bool full{false};
  ControlHandlers handlers{.status = [] { return MachineStatus{.state = "running", .cpus = 2, .memory_bytes = 4096}; },
                           .counters = [] { return R"({"vcpus": []})"; },
                           .snapshot =
                               [this](const Fd& file, const SnapshotDone& done) {
                                 write_to(file, "copied");
                                 done(full ? Result<void>{host_error("no room")} : Result<void>{});
                               },
                           .suspend =
                               [](const Fd& file, const SnapshotDone& done) {
                                 write_to(file, "suspended");
                                 done({});
                               },
                           .stop = [this] { ++stops; }};
};

TEST_F(ProtocolTest, AnswersTheThreeCommands) {
  const nlohmann::json status = ask(make_request("status"))["status"];
  EXPECT_EQ(status, nlohmann::json({{"state", "running"}, {"cpus", 2}, {"memory_bytes", 4096}}));
  EXPECT_TRUE(ask(make_request("counters"))["counters"].contains("vcpus"));
  EXPECT_EQ(stops, 0);
  EXPECT_EQ(ask(make_request("stop"))["ok"], true);
  EXPECT_EQ(stops, 1);
}

TEST_F(ProtocolTest, SnapshotsGoToTheFileThatComesAlong) {
  EXPECT_EQ(ask_with_file("snapshot"), "copied");
  EXPECT_EQ(last["ok"], true);
  EXPECT_EQ(ask_with_file("suspend"), "suspended");
  EXPECT_EQ(last["ok"], true);
  full = true;
  ask_with_file("snapshot");
  EXPECT_EQ(last["ok"], false);
  EXPECT_NE(last["error"].get<std::string>().find("no room"), std::string::npos);
  for (const std::string line : {R"({"command": "snapshot"})", R"({"command": "suspend", "file": "/tmp/x"})"})
    EXPECT_NE(ask(line)["error"].get<std::string>().find("no file to write"), std::string::npos);
}

TEST_F(ProtocolTest, RefusesWhatItDoesNotUnderstand) {
  for (const std::string line : {"", "stop", "[]", "{}", R"({"command": 1})", R"({"command": "st\u0000op"})",
                                 R"({"command": "\ud800"})", "{\"command\": \"\xff\"}", R"({"command": "reboot"})"}) {
    const auto reply = ask(line);
    EXPECT_EQ(reply["ok"], false) << line;
    EXPECT_FALSE(reply["error"].get<std::string>().empty());
  }
  EXPECT_EQ(stops, 0);
}

TEST_F(ProtocolTest, DeepNestingIsHarmless) { EXPECT_EQ(ask(std::string(4000, '['))["ok"], false); }

}  // namespace
}  // namespace vmm
