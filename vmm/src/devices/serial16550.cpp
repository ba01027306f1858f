#include "devices/serial16550.hpp"

#include "vpmu/bits.hpp"

namespace vmm {
namespace {

using vpmu::Bits;

// PC16550D data sheet, table II.
enum Register : unsigned {
  data = 0,
  interrupt_enable = 1,
  fifo_or_identity = 2,
  line_control = 3,
  modem_control = 4,
  line_status_register = 5,
  modem_status_register = 6,
  scratch = 7
};
using IER_RX = Bits<0>;
using IER_TX = Bits<1>;
using IER_ALL = Bits<3, 0>;
using FCR_ENABLE = Bits<0>;
using FCR_CLEAR_RX = Bits<1>;
using FCR_STORED = Bits<7, 6>;
using LCR_DLAB = Bits<7>;
using MCR_ALL = Bits<4, 0>;
using MCR_OUT2 = Bits<3>;
using MCR_LOOP = Bits<4>;

constexpr std::uint8_t iir_none = 0x01;
constexpr std::uint8_t iir_tx_empty = 0x02;
constexpr std::uint8_t iir_rx_data = 0x04;
constexpr std::uint8_t iir_fifo = 0xC0;
constexpr std::uint8_t lsr_data_ready = 0x01;
constexpr std::uint8_t lsr_tx_empty = 0x60;
constexpr std::uint8_t connected = 0xB0;  // DCD, DSR, CTS

}  // namespace

Serial16550::Serial16550(Output output, InterruptLine& line) : output_{std::move(output)}, line_{&line} {}

void Serial16550::port_read(std::uint16_t port, std::span<std::byte> out) {
  const std::scoped_lock lock{mutex_};
  out.front() = std::byte{read_register(port % port_count)};
  update_line();
}

void Serial16550::port_write(std::uint16_t port, std::span<const std::byte> in) {
  const std::scoped_lock lock{mutex_};
  write_register(port % port_count, std::to_integer<std::uint8_t>(in.front()));
  update_line();
}

std::size_t Serial16550::receive(std::span<const std::byte> bytes) {
  const std::scoped_lock lock{mutex_};
  std::size_t taken = 0;
  while (taken < bytes.size() && received_.size() < max_waiting) {
    received_.push_back(std::to_integer<std::uint8_t>(bytes[taken++]));
  }
  update_line();
  return taken;
}

void Serial16550::save(ByteWriter& out) {
  const std::scoped_lock lock{mutex_};
  const std::vector<std::uint8_t> waiting{received_.begin(), received_.end()};
  out.put_run(std::as_bytes(std::span{waiting}));
  out.put(divisor_);
  out.put(std::array{interrupt_enable_, fifo_control_, line_control_, modem_control_, scratch_,
                     std::uint8_t{transmitter_interrupt_}});
}

// The interrupt controllers' own state has the line's level already, and these registers give the same level.
void Serial16550::restore(ByteReader& in) {
  const std::scoped_lock lock{mutex_};
  const auto waiting = in.get_run();
  received_.clear();
  for (const std::byte b : waiting.first(std::min(waiting.size(), max_waiting)))
    received_.push_back(std::to_integer<std::uint8_t>(b));
  divisor_ = in.get<std::array<std::uint8_t, 2>>();
  const auto registers = in.get<std::array<std::uint8_t, 6>>();
  interrupt_enable_ = registers[0];
  fifo_control_ = registers[1];
  line_control_ = registers[2];
  modem_control_ = registers[3];
  scratch_ = registers[4];
  transmitter_interrupt_ = registers[5] != 0;
  update_line();
}

std::uint8_t Serial16550::read_register(unsigned offset) {
  const bool divisor = LCR_DLAB::test(line_control_);
  switch (offset) {
    case data: return divisor ? divisor_[0] : read_data();
    case interrupt_enable: return divisor ? divisor_[1] : interrupt_enable_;
    case fifo_or_identity: return interrupt_identity();
    case line_control: return line_control_;
    case modem_control: return modem_control_;
    case line_status_register: return line_status();
    case modem_status_register: return modem_status();
    default: return scratch_;
  }
}

void Serial16550::write_register(unsigned offset, std::uint8_t value) {
  const bool divisor = LCR_DLAB::test(line_control_);
  switch (offset) {
    case data: return divisor ? void(divisor_[0] = value) : write_data(value);
    case interrupt_enable:
      if (divisor) {
        divisor_[1] = value;
        return;
      }
      // The transmitter is always empty: enabling its interrupt raises it.
      transmitter_interrupt_ = transmitter_interrupt_ || (IER_TX::test(value) && !IER_TX::test(interrupt_enable_));
      interrupt_enable_ = static_cast<std::uint8_t>(value & IER_ALL::mask);
      return;
    case fifo_or_identity: return write_fifo_control(value);
    case line_control: line_control_ = value; return;
    case modem_control: modem_control_ = static_cast<std::uint8_t>(value & MCR_ALL::mask); return;
    case scratch: scratch_ = value; return;
    default: return;
  }
}

void Serial16550::write_data(std::uint8_t value) {
  transmitter_interrupt_ = true;
  if (!MCR_LOOP::test(modem_control_)) {
    output_(value);
  } else if (received_.size() < max_waiting) {
    received_.push_back(value);
  }
}

void Serial16550::write_fifo_control(std::uint8_t value) {
  if (FCR_CLEAR_RX::test(value)) {
    received_.clear();
  }
  fifo_control_ = static_cast<std::uint8_t>(value & (FCR_STORED::mask | FCR_ENABLE::mask));
}

std::uint8_t Serial16550::read_data() {
  if (received_.empty()) {
    return 0;
  }
  const auto value = received_.front();
  received_.pop_front();
  return value;
}

std::uint8_t Serial16550::interrupt_identity() {
  const std::uint8_t fifo = FCR_ENABLE::test(fifo_control_) ? iir_fifo : 0;
  if (IER_RX::test(interrupt_enable_) && !received_.empty()) {
    return fifo | iir_rx_data;
  }
  if (IER_TX::test(interrupt_enable_) && transmitter_interrupt_) {
    transmitter_interrupt_ = false;  // reading IIR acknowledges this source
    return fifo | iir_tx_empty;
  }
  return fifo | iir_none;
}

std::uint8_t Serial16550::line_status() const {
  return received_.empty() ? lsr_tx_empty : static_cast<std::uint8_t>(lsr_tx_empty | lsr_data_ready);
}

std::uint8_t Serial16550::modem_status() const {
  if (!MCR_LOOP::test(modem_control_)) {
    return connected;
  }
  // Loop-back: DTR, RTS, OUT1, OUT2 come back as DSR, CTS, RI, DCD.
  const unsigned mcr = modem_control_;
  return static_cast<std::uint8_t>((mcr & 1U) << 5U | (mcr & 2U) << 3U | (mcr & 4U) << 4U | (mcr & 8U) << 4U);
}

void Serial16550::update_line() {
  const bool pending = (IER_RX::test(interrupt_enable_) && !received_.empty()) ||
                       (IER_TX::test(interrupt_enable_) && transmitter_interrupt_);
  // On a PC, OUT2 connects the UART to its line.
  const auto level = pending && MCR_OUT2::test(modem_control_) ? LineLevel::high : LineLevel::low;
  if (level != level_) {
    level_ = level;
    line_->set(level);
  }
}

}  // namespace vmm
