#include "control/protocol.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace vmm {
namespace {

class ProtocolTest : public testing::Test {
 protected:
  nlohmann::json ask(std::string_view line) {
    const auto reply = answer_request(line, handlers);
    EXPECT_EQ(reply.find('\n'), std::string::npos) << "one line";
    return nlohmann::json::parse(reply);
  }
  int stops{0};
  std::string copied, suspended;
  ControlHandlers handlers{.status = [] { return R"({"state": "running"})"; },
                           .counters = [] { return R"({"vcpus": []})"; },
                           .snapshot =
                               [this](const std::string& path) {
                                 copied = path;
                                 return path == "full" ? Result<void>{host_error("no room")} : Result<void>{};
                               },
                           .suspend =
                               [this](const std::string& path) {
                                 suspended = path;
                                 return Result<void>{};
                               },
                           .stop = [this] { ++stops; }};
};

TEST_F(ProtocolTest, AnswersTheThreeCommands) {
  EXPECT_EQ(ask(make_request("status"))["status"]["state"], "running");
  EXPECT_TRUE(ask(make_request("counters"))["counters"].contains("vcpus"));
  EXPECT_EQ(stops, 0);
  EXPECT_EQ(ask(make_request("stop"))["ok"], true);
  EXPECT_EQ(stops, 1);
}

TEST_F(ProtocolTest, SnapshotsGoToTheFileThatIsNamed) {
  EXPECT_EQ(ask(make_request("snapshot", "/a \"b\""))["ok"], true);
  EXPECT_EQ(copied, "/a \"b\"");
  EXPECT_EQ(ask(make_request("suspend", "c"))["ok"], true);
  EXPECT_EQ(suspended, "c");
  const auto failed = ask(make_request("snapshot", "full"));
  EXPECT_EQ(failed["ok"], false);
  EXPECT_NE(failed["error"].get<std::string>().find("no room"), std::string::npos);
  for (const std::string line : {R"({"command": "snapshot"})", R"({"command": "suspend", "file": 1})"})
    EXPECT_NE(ask(line)["error"].get<std::string>().find("no \"file\""), std::string::npos);
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
