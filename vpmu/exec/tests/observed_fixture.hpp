#pragma once
#include "exec/observer.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "exec/engine.hpp"
#include "exec/tests/flat_ram.hpp"

namespace vpmu::exec::test {

/// Writes down what it sees, addresses relative to a base.
class Notes final : public Observer {
 public:
  explicit Notes(std::uint64_t base) : base_{base} {}
  void fetched(const SeenCode& code) override {
    ++lines;
    EXPECT_EQ(code.linear, code.physical) << "no paging here";
    EXPECT_EQ(code.page_bytes, page_size);
  }
  void accessed(const SeenAccess& a, std::uint64_t now) override {
    EXPECT_EQ(a.linear, a.physical);
    EXPECT_EQ(a.page_bytes, page_size);
    (a.store ? stores : loads) += 1;
    add((a.store ? "S" : "L") + std::to_string(a.bytes) + "@" + std::to_string(a.linear - base_) +
        (a.second_half ? "+" : ""));
    EXPECT_GE(now, last_) << "time does not run back";
    last_ = now;
    nows.push_back(now);
  }
  void retired(bool load, bool store) override {
    add(std::string{"retired"} + (load ? " load" : "") + (store ? " store" : ""));
  }
  void branched(const SeenBranch& b) override {
    branch_nows.push_back(b.now);
    add("branch " + std::to_string(b.at - base_) + (b.taken ? " to " : " not to ") + std::to_string(b.to - base_) +
        " kind " + std::to_string(static_cast<unsigned>(b.kind)));
  }
  void abandoned() override {
    ++given_up;
    add("abandoned");
  }
  void flushed_line(const SeenFlush& f) override {
    EXPECT_EQ(f.linear, f.physical);
    add("flush " + std::to_string(f.linear - base_));
  }
  void flushed() override { add("flushed"); }
  /// Another engine, whose time begins anew.
  void restart() { last_ = 0; }

  bool quiet{};
  std::vector<std::string> log;
  std::vector<std::uint64_t> nows, branch_nows;
  std::uint64_t loads{}, stores{}, lines{}, given_up{};

 private:
  void add(std::string line) {
    if (!quiet) log.push_back(std::move(line));
  }
  std::uint64_t base_;
  std::uint64_t last_{};
};

/// Code on the second page, data on the first and third; what is behind is no memory.
class Observed : public testing::Test {
 protected:
  using Code = std::vector<unsigned>;
  using Log = std::vector<std::string>;

  void put(const Code& code) {
    for (std::size_t i = 0; i < code.size(); ++i) ram_.bytes()[page_size + i] = static_cast<std::byte>(code[i]);
  }
  void begin(const Code& code) {
    put(code);
    state_.rip = ram_.address() + page_size;
    state_.rflags = 2;
    if (state_.gpr[rsp] == 0) state_.gpr[rsp] = ram_.address() + page_size;
    engine_.observe(&notes_);
    engine_.load(state_);
  }

  FlatRam ram_{3 * page_size};
  std::uint64_t data_{ram_.address()};
  Notes notes_{ram_.address()};
  NoPlatform platform_;
  CpuState state_;
  Engine engine_{ram_, platform_};
};

}  // namespace vpmu::exec::test
