#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "gt/protocol.hpp"
#include "gt/text.hpp"

/// How a test is written: `GT_TEST(PebsFull_IsSilent, gt::need_records) { GT_EQUAL(index, maximum); }`.
///
/// Each test runs alone in a fresh machine, so it may leave anything behind. A test that makes no check fails.
namespace gt {

/// Whether the counting source counts each instruction exactly.
bool exact_counts();
/// Whether there is time for all repetitions.
bool is_long();

/// Sends a line to the reader.
void log(const char* text);

/// Ends the test: it cannot judge here, for the reason given.
[[noreturn]] void skip(const char* reason);
/// Ends the test with what has been checked so far.
[[noreturn]] void complete();
/// Ends the test as failed for a reason outside its checks.
[[noreturn]] void abort_test(const char* file, int line, const char* reason);

/// Notes a check; sends the failure unless `passed`. Returns `passed`.
bool check(bool passed, const char* file, int line, const char* expression);

/// Where a failing check's text is built: a buffer of the runtime.
std::span<char> message_text();
void send_failure(const char* file, int line);
void count_check();

/// Notes a comparison; sends both values when they differ. `where` names a table row, may be empty.
template <class A, class B>
bool check_equal(const A& actual, const B& expected, const char* file, int line, const char* expression,
                 const char* where = "") {
  count_check();
  if (actual == expected) return true;
  Text text{message_text()};
  text << expression << " is " << actual << ", expected " << expected;
  if (*where != '\0') text << " (" << where << ')';
  send_failure(file, line);
  return false;
}

consteval std::array<char, test_name_size> dotted(std::string_view name) {
  std::array<char, test_name_size> out{};
  for (std::size_t i = 0; i < name.size(); ++i) out.at(i) = name[i] == '_' ? '.' : name[i];
  return out;
}

/// A TestDescriptor as the guest sees it: the linker fills in the entry.
struct LinkedTest {
  std::array<char, test_name_size> name;
  std::uint64_t needs;
  void (*entry)();
};
static_assert(sizeof(LinkedTest) == sizeof(TestDescriptor));

}  // namespace gt

/// Defines a test. Underscores of the name read as dots: Subject_Behaviour. Further arguments: needs, or nothing.
#define GT_TEST(test_name, ...)                                                                   \
  static void gt_run_##test_name();                                                               \
  [[gnu::section(".gt_tests"), gnu::used]] static const gt::LinkedTest gt_test_##test_name = {    \
      gt::dotted(#test_name), std::uint64_t{0 __VA_OPT__(| (__VA_ARGS__))}, &gt_run_##test_name}; \
  static void gt_run_##test_name()

/// The condition holds; the test goes on either way.
#define GT_CHECK(...) gt::check(static_cast<bool>(__VA_ARGS__), __FILE_NAME__, __LINE__, #__VA_ARGS__)
/// The condition holds, or the test ends here.
#define GT_REQUIRE(...)                                                                                    \
  do {                                                                                                     \
    if (!gt::check(static_cast<bool>(__VA_ARGS__), __FILE_NAME__, __LINE__, #__VA_ARGS__)) gt::complete(); \
  } while (false)
/// Both are equal; prints both when not.
#define GT_EQUAL(actual, expected) gt::check_equal((actual), (expected), __FILE_NAME__, __LINE__, #actual)
/// As GT_EQUAL for a row of a table: `where` says which.
#define GT_EQUAL_AT(where, actual, expected) \
  gt::check_equal((actual), (expected), __FILE_NAME__, __LINE__, #actual, (where))
