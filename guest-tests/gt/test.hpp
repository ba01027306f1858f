#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "gt/protocol.hpp"
#include "gt/text.hpp"

/// How a test is written: `GT_TEST(PebsFull_DoesNotInterrupt, gt::need_records) { GT_EQUAL(index, maximum); }`.
///
/// Each test runs alone in a fresh machine, so it may leave anything behind. A test that makes no check fails.
namespace gt {

/// Whether the counting source counts each instruction exactly.
bool exact_counts();
/// Whether there is time for all repetitions.
bool is_long();

/// Sends a line to the host's log.
void log(const char* text);

/// Ends the test as skipped: it is meaningless here, for this reason.
[[noreturn]] void skip(const char* reason);
/// Ends the test with what has been checked so far.
[[noreturn]] void complete();
/// Ends the test as failed for a reason outside its checks.
[[noreturn]] void abort_test(const char* file, int line, const char* reason);

/// Counts a check, and reports the failure unless `passed`. Returns `passed`.
bool check(bool passed, const char* file, int line, const char* expression);

/// A buffer of the runtime for the text of a failing check.
std::span<char> message_text();
void send_failure(const char* file, int line);
void count_check();

/// Counts a comparison, and reports both values if they differ. `where` names a table row, and may be empty.
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

/// A TestDescriptor as the guest declares it: the linker fills in the entry.
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

/// The condition holds; if not, the test fails but continues.
#define GT_CHECK(...) gt::check(static_cast<bool>(__VA_ARGS__), __FILE_NAME__, __LINE__, #__VA_ARGS__)
/// Checks a condition; the test ends here if it does not hold.
#define GT_REQUIRE(...)                                                                                    \
  do {                                                                                                     \
    if (!gt::check(static_cast<bool>(__VA_ARGS__), __FILE_NAME__, __LINE__, #__VA_ARGS__)) gt::complete(); \
  } while (false)
/// Both are equal; otherwise prints both.
#define GT_EQUAL(actual, expected) gt::check_equal((actual), (expected), __FILE_NAME__, __LINE__, #actual)
/// As GT_EQUAL, for a row of a table that `where` names.
#define GT_EQUAL_AT(where, actual, expected) \
  gt::check_equal((actual), (expected), __FILE_NAME__, __LINE__, #actual, (where))
