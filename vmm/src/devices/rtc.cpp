#include "devices/rtc.hpp"

#include <utility>

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

// MC146818 data sheet.
enum Cell : std::uint8_t {
  seconds = 0,
  minutes = 2,
  hours = 4,
  week_day = 6,
  month_day = 7,
  month = 8,
  year = 9,
  register_a = 10,
  register_b = 11,
  register_c = 12,
  register_d = 13,
  century = 0x32
};
using INDEX = vpmu::Bits<6, 0>;  // bit 7 of port 70H masks NMIs on a PC
using B_BINARY = vpmu::Bits<2>;
using B_24_HOURS = vpmu::Bits<1>;
constexpr std::uint8_t a_32768_hz = 0x26;  // never "update in progress"
constexpr std::uint8_t d_valid = 0x80;

}  // namespace

Rtc::Rtc(std::function<std::time_t()> now) : now_{std::move(now)} { cells_[register_b] = B_24_HOURS::mask; }

void Rtc::port_read(std::uint16_t port, std::span<std::byte> out) {
  const std::scoped_lock lock{mutex_};
  if (port != first_port) {
    out.front() = std::byte{read_cell(index_)};
  }
}

void Rtc::port_write(std::uint16_t port, std::span<const std::byte> in) {
  const std::scoped_lock lock{mutex_};
  const auto value = std::to_integer<std::uint8_t>(in.front());
  if (port == first_port) {
    index_ = static_cast<std::uint8_t>(value & INDEX::mask);
  } else {
    cells_[index_] = value;
  }
}

void Rtc::save(ByteWriter& out) {
  const std::scoped_lock lock{mutex_};
  out.put(index_);
  out.put(cells_);
}

void Rtc::restore(ByteReader& in) {
  const std::scoped_lock lock{mutex_};
  index_ = static_cast<std::uint8_t>(in.get<std::uint8_t>() & INDEX::mask);
  cells_ = in.get<std::array<std::uint8_t, 128>>();
}

std::uint8_t Rtc::encode(int value) const {
  if (B_BINARY::test(cells_[register_b])) {
    return static_cast<std::uint8_t>(value);
  }
  return static_cast<std::uint8_t>(value / 10 << 4 | value % 10);
}

std::uint8_t Rtc::read_cell(std::uint8_t index) const {
  const std::time_t now = now_();
  std::tm time{};
  ::gmtime_r(&now, &time);
  switch (index) {
    case seconds: return encode(time.tm_sec);
    case minutes: return encode(time.tm_min);
    case hours:
      if (B_24_HOURS::test(cells_[register_b])) {
        return encode(time.tm_hour);
      }
      return static_cast<std::uint8_t>(encode((time.tm_hour + 11) % 12 + 1) | (time.tm_hour >= 12 ? 0x80 : 0));
    case week_day: return encode(time.tm_wday + 1);
    case month_day: return encode(time.tm_mday);
    case month: return encode(time.tm_mon + 1);
    case year: return encode(time.tm_year % 100);
    case century: return encode((time.tm_year + 1900) / 100);
    case register_a: return a_32768_hz;
    case register_c: return 0;
    case register_d: return d_valid;
    default: return cells_[index];
  }
}

}  // namespace vmm
