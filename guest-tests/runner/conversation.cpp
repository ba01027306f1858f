#include "conversation.hpp"

#include <fmt/format.h>

#include <cstring>

#include "gt/protocol.hpp"

namespace gt_runner {
namespace {

/// A guest that reports for ever must not fill the host's memory.
constexpr std::size_t max_lines = 200;

template <std::size_t N>
std::string text_of(const std::array<char, N>& field) {
  std::string text{field.data(), ::strnlen(field.data(), N)};
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7F') c = '?';
  return text;
}

void add_line(std::vector<std::string>& lines, std::string line) {
  if (lines.size() < max_lines) lines.push_back(std::move(line));
}

}  // namespace

void Conversation::port_write(std::uint16_t, std::span<const std::byte> in) {
  {
    const std::scoped_lock lock{mutex_};
    if (ended_ || !take(in)) return;
    ended_ = true;
  }
  over_();
}

bool Conversation::take(std::span<const std::byte> in) {
  std::uint32_t address{};
  if (in.size() != sizeof address)
    return fail(fmt::format("the guest wrote {} bytes to the command port, not 4", in.size()));
  std::memcpy(&address, in.data(), sizeof address);
  gt::Message message;
  if (!memory_->read(vpmu::GuestPhysical{address}, std::as_writable_bytes(std::span{&message, 1})))
    return fail(fmt::format("the guest's message at {:#x} is not in its RAM", address));
  switch (message.command) {
    case gt::Command::log: add_line(result_.log, text_of(message.text)); return false;
    case gt::Command::fail:
      add_line(result_.failures, fmt::format("{}:{}: {}", text_of(message.file), message.line, text_of(message.text)));
      return false;
    case gt::Command::skip:
      result_.verdict = Verdict::skipped;
      result_.reason = text_of(message.text);
      return true;
    case gt::Command::complete: return complete(message.checks);
  }
  return fail(fmt::format("the guest sent command {}", static_cast<std::uint32_t>(message.command)));
}

bool Conversation::fail(std::string reason) {
  result_.verdict = Verdict::failed;
  result_.reason = std::move(reason);
  return true;
}

bool Conversation::complete(std::uint32_t checks) {
  result_.checks = checks;
  if (!result_.failures.empty()) return fail("");
  if (checks == 0) return fail("the test made no check");
  result_.verdict = Verdict::passed;
  return true;
}

bool Conversation::ended() const {
  const std::scoped_lock lock{mutex_};
  return ended_;
}

TestResult Conversation::result() const {
  const std::scoped_lock lock{mutex_};
  return result_;
}

}  // namespace gt_runner
