#include "exec/guest_cache.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/guest_key.hpp"
#include "fakes/own_directory.hpp"

namespace vmm::tool {
namespace {

namespace fs = std::filesystem;

/// A cache in a directory of its own.
class GuestCaches : public testing::Test {
 public:
  GuestCaches() { ::setenv("XDG_CACHE_HOME", home_.path().c_str(), 1); }
  ~GuestCaches() override {
    ::unsetenv("XDG_CACHE_HOME");
    ::unsetenv("VPMU_GUEST_CACHE_SIZE");
  }
  GuestCaches(const GuestCaches&) = delete;
  GuestCaches& operator=(const GuestCaches&) = delete;

 protected:
  [[nodiscard]] fs::path home() const { return home_.path(); }
  [[nodiscard]] fs::path place(const std::string& name) const { return home() / "vpmu/guests" / name; }
  static void put(const GuestCache& cache, const std::string& name, std::size_t bytes = 100) {
    auto file = cache.add(name);
    ASSERT_TRUE(file);
    ASSERT_TRUE(file->write(std::vector<std::byte>(bytes)));
    ASSERT_TRUE(file->finish());
  }
  static std::vector<std::string> names(const GuestCache& cache) {
    std::vector<std::string> all;
    for (const auto& entry : cache.list()) all.push_back(entry.name);
    return all;
  }
  void age(const std::string& name, std::chrono::hours hours) const {
    fs::last_write_time(place(name), fs::file_time_type::clock::now() - hours);
  }

 private:
  test::Directory home_;
};

using Names = std::vector<std::string>;
using std::chrono::hours;

TEST_F(GuestCaches, HasWhatWasPutThere) {
  const auto cache = GuestCache::open();
  ASSERT_TRUE(cache);
  EXPECT_FALSE(cache->find("guest"));
  put(*cache, "guest", 5);
  const auto found = GuestCache::open()->find("guest");
  ASSERT_TRUE(found);
  struct stat is{};
  ASSERT_EQ(::fstat(found->get(), &is), 0);
  EXPECT_EQ(is.st_size, 5);
  ASSERT_TRUE(cache->remove("guest"));
  EXPECT_FALSE(cache->find("guest"));
  EXPECT_TRUE(cache->remove("guest")) << "it is not there already";
}

TEST_F(GuestCaches, TrustsOnlyWhatThisUserHasPutThere) {
  const auto cache = GuestCache::open();
  ASSERT_TRUE(cache);
  put(*cache, "guest");
  fs::create_symlink(place("guest"), place("link"));
  fs::create_directory(place("directory"));
  ASSERT_EQ(::mkfifo(place("fifo").c_str(), 0600), 0);
  for (const char* const name : {"link", "directory", "fifo"}) EXPECT_FALSE(cache->find(name)) << name;
  for (const mode_t mode : {0640U, 0602U, 0604U}) {
    ASSERT_EQ(::chmod(place("guest").c_str(), mode), 0);
    EXPECT_FALSE(cache->find("guest")) << mode;
  }
  ASSERT_EQ(::chmod(place("guest").c_str(), 0600), 0);
  EXPECT_TRUE(cache->find("guest"));
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(place("guest").c_str(), 1, 1), 0);
    EXPECT_FALSE(cache->find("guest"));
  }
}

TEST_F(GuestCaches, NeedsADirectoryWhereNobodyElseWrites) {
  ASSERT_TRUE(GuestCache::open());
  for (const fs::path& part : {home(), home() / "vpmu", home() / "vpmu/guests"}) {
    ASSERT_EQ(::chmod(part.c_str(), 0777), 0);
    const auto refused = GuestCache::open();
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().what.find(part), std::string::npos) << refused.error().what;
    ASSERT_EQ(::chmod(part.c_str(), 0755), 0);
    if (::geteuid() != 0) continue;
    ASSERT_EQ(::chown(part.c_str(), 1, 1), 0);
    EXPECT_FALSE(GuestCache::open()) << part;
    ASSERT_EQ(::chown(part.c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(GuestCache::open());
}

TEST_F(GuestCaches, IsBesideTheOthersOfAUser) {
  const std::string home = this->home().native();
  const char* const before = std::getenv("HOME");
  const std::optional<std::string> user_home = before == nullptr ? std::nullopt : std::optional<std::string>{before};
  ::setenv("HOME", home.c_str(), 1);
  for (const char* const given : {"", "relative"}) {
    ::setenv("XDG_CACHE_HOME", given, 1);
    const auto cache = GuestCache::open();
    ASSERT_TRUE(cache);
    EXPECT_EQ(cache->path(), home + "/.cache/vpmu/guests");
  }
  ::unsetenv("HOME");
  EXPECT_FALSE(GuestCache::open());
  if (user_home) ::setenv("HOME", user_home->c_str(), 1);
}

TEST_F(GuestCaches, ForgetWhatWasNotUsedForLongest) {
  ::setenv("VPMU_GUEST_CACHE_SIZE", "10K", 1);
  const auto cache = GuestCache::open();
  ASSERT_TRUE(cache);
  EXPECT_EQ(cache->max_bytes(), 10'240U);
  for (const char* const name : {"a", "b", "c"}) put(*cache, name, 4000);
  age("a", hours{3});
  age("b", hours{2});
  age("c", hours{1});
  EXPECT_EQ(names(*cache), (Names{"c", "b", "a"}));
  EXPECT_TRUE(cache->find("a")) << "which is a use";
  put(*cache, "d", 4000);
  EXPECT_EQ(names(*cache).size(), 3U);
  EXPECT_FALSE(cache->find("b"));
}

TEST_F(GuestCaches, ForgetWhatWasNeverFinished) {
  const auto cache = GuestCache::open();
  ASSERT_TRUE(cache);
  for (const char* const name : {"old.part-abcdef", "new.part-abcdef"}) put(*cache, name);
  age("old.part-abcdef", hours{2});
  put(*cache, "guest");
  EXPECT_FALSE(cache->find("old.part-abcdef"));
  EXPECT_TRUE(cache->find("new.part-abcdef")) << "somebody may still write it";
}

TEST_F(GuestCaches, RefuseASizeThatIsNone) {
  ::setenv("VPMU_GUEST_CACHE_SIZE", "much", 1);
  EXPECT_FALSE(GuestCache::open());
}

/// A guest's name, with something changed.
std::string key_with(const std::function<void(MachineConfig&)>& change, const KernelFile& kernel = {"6.1", 10},
                     const std::string& devices = "one") {
  MachineConfig machine{.initrd_content = std::make_shared<const std::vector<std::byte>>(3)};
  change(machine);
  const auto key = guest_key(machine, kernel, devices);
  EXPECT_TRUE(key);
  return *key;
}

TEST(GuestKey, TellsApartWhatGuestsDependOn) {
  const auto nothing = [](MachineConfig&) {};
  const std::vector<std::function<void(MachineConfig&)>> changes{
      nothing,
      [](MachineConfig& m) { m.initrd_content = std::make_shared<const std::vector<std::byte>>(4); },
      [](MachineConfig& m) { m.command_line = "nosmp"; },
      [](MachineConfig& m) { m.memory_bytes *= 2; },
      [](MachineConfig& m) { m.cpus = 2; },
      [](MachineConfig& m) { m.threads_per_core = 2; },
      [](MachineConfig& m) { m.model = "haswell"; },
      [](MachineConfig& m) { m.bare_metal = true; },
      [](MachineConfig& m) { m.source = "step"; },
      [](MachineConfig& m) { m.source_options.time = TimeModel::pipeline; },
      [](MachineConfig& m) { m.source_options.compiling = vpmu::exec::never_compiling; },
      [](MachineConfig& m) { ASSERT_FALSE(m.source_options.changes.add("l3=4M")); },
      [](MachineConfig& m) { m.accel = Accel::soft; },
      [](MachineConfig& m) { m.unknown_msr = UnknownMsr::ignore; },
      [](MachineConfig& m) { m.pmu_time = PmuTime::real; },
      [](MachineConfig& m) { m.pmu_policies.skid_events = 3; },
      [](MachineConfig& m) { m.pmu_policies.load_tag_interval = 3; },
      [](MachineConfig& m) { m.epoch = 1; },
      [](MachineConfig& m) { m.schedule = Schedule{.turn = 7}; },
      [](MachineConfig& m) { m.schedule = Schedule{.seed = 7}; }};
  std::set<std::string> keys;
  for (const auto& change : changes) keys.insert(key_with(change));
  keys.insert(key_with(nothing, {"6.1", 11}));
  keys.insert(key_with(nothing, {"6.2", 10}));
  keys.insert(key_with(nothing, {"6.1", 10}, "two"));
  EXPECT_EQ(keys.size(), changes.size() + 3);
  EXPECT_EQ(key_with(nothing), key_with(nothing));
  EXPECT_EQ(key_with(nothing), key_with([](MachineConfig& m) { m.kernel = "/elsewhere/the-same"; }));
}

}  // namespace
}  // namespace vmm::tool
