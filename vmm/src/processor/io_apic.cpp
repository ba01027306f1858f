#include "processor/io_apic.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::bit;

constexpr std::uint32_t index_offset = 0, data_offset = 0x10;
constexpr std::uint8_t register_id = 0, register_version = 1, register_arbitration = 2, first_redirection = 0x10;
/// Version 11H, which has no EOI register; and the number of the last line.
constexpr std::uint32_t version = 0x11 | (IoApic::lines - 1) << 16;
constexpr std::uint32_t id_bits = 0x0F00'0000;

// Data sheet 3.2.4.
namespace redirection {
using VECTOR = vpmu::Bits<7, 0>;
using DELIVERY_MODE = vpmu::Bits<10, 8>;
using REMOTE_IRR = vpmu::Bits<14>;
using LEVEL = vpmu::Bits<15>;
using MASKED = vpmu::Bits<16>;
using LOGICAL = vpmu::Bits<11>;
using DESTINATION = vpmu::Bits<63, 56>;
constexpr std::uint64_t read_only = bit(12) | bit(14);
}  // namespace redirection

// SDM 3A figures 10-24 and 10-25.
namespace message {
using PREFIX = vpmu::Bits<63, 20>;
using DESTINATION = vpmu::Bits<19, 12>;
using LOGICAL = vpmu::Bits<2>;
using VECTOR = vpmu::Bits<7, 0>;
using DELIVERY_MODE = vpmu::Bits<10, 8>;
constexpr std::uint64_t prefix = 0xFEE, min_vector = 16;
}  // namespace message

constexpr std::uint64_t everyone = 0xFF;
bool is_interrupt(std::uint64_t delivery_mode) {
  return delivery_mode <= static_cast<std::uint64_t>(ApicMessage::Mode::lowest_priority);
}

/// The saved form.
struct SavedMessage {
  std::uint32_t vector{}, mode{}, everyone{}, logical{}, destination{};
};

}  // namespace

IoApic::IoApic() { redirection_.fill(redirection::MASKED::mask); }

std::uint32_t IoApic::read(std::uint32_t offset) {
  const std::scoped_lock lock{mutex_};
  if (offset == index_offset) return index_;
  if (offset != data_offset) return 0;
  switch (index_) {
    case register_id:
    case register_arbitration: return id_;
    case register_version: return version;
    default: break;
  }
  const unsigned word = index_ - first_redirection;
  if (index_ < first_redirection || word >= 2 * lines) return 0;
  return static_cast<std::uint32_t>(redirection_[word / 2] >> (word % 2 * 32));
}

void IoApic::write(std::uint32_t offset, std::uint32_t value) {
  const std::scoped_lock lock{mutex_};
  if (offset == index_offset) index_ = static_cast<std::uint8_t>(value);
  if (offset != data_offset) return;
  if (index_ == register_id) id_ = value & id_bits;
  const unsigned word = index_ - first_redirection;
  if (index_ < first_redirection || word >= 2 * lines) return;
  std::uint64_t& entry = redirection_[word / 2];
  const unsigned shift = word % 2 * 32;
  const std::uint64_t writable = (0xFFFF'FFFFULL << shift) & ~redirection::read_only;
  entry = (entry & ~writable) | (std::uint64_t{value} << shift & writable);
  if (!redirection::LEVEL::test(entry)) entry &= ~redirection::REMOTE_IRR::mask;
  look();
}

void IoApic::set_line(std::uint32_t line, LineLevel level) {
  if (line >= lines) return;
  const std::scoped_lock lock{mutex_};
  const auto one = static_cast<std::uint32_t>(bit(line));
  const std::uint64_t entry = redirection_[line];
  const bool takes_edges = !redirection::LEVEL::test(entry) && !redirection::MASKED::test(entry);
  if (level == LineLevel::high && (high_ & one) == 0 && takes_edges) edges_ |= one;
  high_ = level == LineLevel::high ? high_ | one : high_ & ~one;
  look();
}

std::optional<unsigned> IoApic::ready() const {
  for (unsigned line = 0; line < lines; ++line) {
    const std::uint64_t entry = redirection_[line];
    if (redirection::MASKED::test(entry) || !is_interrupt(redirection::DELIVERY_MODE::get(entry))) continue;
    const bool waits = redirection::LEVEL::test(entry)
                           ? (high_ & bit(line)) != 0 && !redirection::REMOTE_IRR::test(entry)
                           : (edges_ & bit(line)) != 0;
    if (waits) return line;
  }
  return std::nullopt;
}

void IoApic::look() {
  attention_ = ready().has_value() || !messages_.empty();
  if (attention_) changed_.notify_all();
}

void IoApic::send(std::uint64_t address, std::uint32_t data) {
  using namespace message;
  const std::uint64_t mode = DELIVERY_MODE::get(data), destination = DESTINATION::get(address);
  if (PREFIX::get(address) != prefix || !is_interrupt(mode) || VECTOR::get(data) < min_vector) return;
  const std::scoped_lock lock{mutex_};
  messages_.insert({.vector = static_cast<std::uint8_t>(VECTOR::get(data)),
                    .mode = static_cast<ApicMessage::Mode>(mode),
                    .everyone = destination == everyone,
                    .logical = LOGICAL::test(address),
                    .destination = static_cast<std::uint32_t>(destination)});
  look();
}

std::optional<ApicMessage> IoApic::take() {
  if (!attention_) return std::nullopt;
  const std::scoped_lock lock{mutex_};
  if (!messages_.empty()) {
    const ApicMessage message = messages_.extract(messages_.begin()).value();
    look();
    return message;
  }
  const auto line = ready();
  if (!line) return std::nullopt;
  std::uint64_t& entry = redirection_[*line];
  edges_ &= ~static_cast<std::uint32_t>(bit(*line));
  if (redirection::LEVEL::test(entry)) entry |= redirection::REMOTE_IRR::mask;
  look();
  const std::uint64_t destination = redirection::DESTINATION::get(entry);
  return ApicMessage{.vector = static_cast<std::uint8_t>(redirection::VECTOR::get(entry)),
                     .mode = static_cast<ApicMessage::Mode>(redirection::DELIVERY_MODE::get(entry)),
                     .everyone = destination == everyone,
                     .logical = redirection::LOGICAL::test(entry),
                     .level = redirection::LEVEL::test(entry),
                     .destination = static_cast<std::uint32_t>(destination)};
}

void IoApic::end_of_interrupt(std::uint8_t vector) {
  const std::scoped_lock lock{mutex_};
  for (std::uint64_t& entry : redirection_)
    if (redirection::LEVEL::test(entry) && redirection::VECTOR::get(entry) == vector)
      entry &= ~redirection::REMOTE_IRR::mask;
  look();
}

void IoApic::wait(std::chrono::milliseconds at_most) {
  std::unique_lock lock{mutex_};
  changed_.wait_for(lock, at_most, [this] { return attention_.load(); });
}

void IoApic::save(ByteWriter& out) {
  const std::scoped_lock lock{mutex_};
  out.put(std::array{std::uint32_t{index_}, id_, high_, edges_});
  out.put(redirection_);
  out.put(std::uint64_t{messages_.size()});
  for (const ApicMessage& m : messages_)
    out.put(SavedMessage{.vector = m.vector,
                         .mode = static_cast<std::uint32_t>(m.mode),
                         .everyone = m.everyone,
                         .logical = m.logical,
                         .destination = m.destination});
}

bool IoApic::restore(ByteReader& in) {
  const auto words = in.get<std::array<std::uint32_t, 4>>();
  const auto redirections = in.get<std::array<std::uint64_t, lines>>();
  std::set<ApicMessage> messages;
  for (auto left = in.get<std::uint64_t>(); left != 0 && in.good(); --left) {
    const auto m = in.get<SavedMessage>();
    if (m.vector < message::min_vector || m.vector > 0xFF || !is_interrupt(m.mode)) return false;
    messages.insert({.vector = static_cast<std::uint8_t>(m.vector),
                     .mode = static_cast<ApicMessage::Mode>(m.mode),
                     .everyone = m.everyone != 0,
                     .logical = m.logical != 0,
                     .destination = m.destination});
  }
  if (!in.good()) return false;
  constexpr auto all_lines = static_cast<std::uint32_t>(vpmu::low_bits(lines));
  const std::scoped_lock lock{mutex_};
  index_ = static_cast<std::uint8_t>(words[0]);
  id_ = words[1] & id_bits;
  high_ = words[2] & all_lines;
  edges_ = words[3] & all_lines;
  redirection_ = redirections;
  messages_ = std::move(messages);
  look();
  return true;
}

}  // namespace vmm
