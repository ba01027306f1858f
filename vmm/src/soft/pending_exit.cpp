#include "soft/pending_exit.hpp"

#include <span>

namespace vmm {

std::optional<Exit> PendingExit::begin(const SystemResult& result, std::uint8_t bytes, std::uint32_t counter) {
  *this = {.length = bytes};
  if (const auto* msr = std::get_if<MsrAccess>(&result)) {
    kind = msr->write ? Kind::wrmsr : Kind::read;
    const MsrReply reply{data, gp};
    if (msr->write) return Exit{MsrWrite{msr->index, msr->value, MsrReason::filter, reply}};
    return Exit{MsrRead{msr->index, MsrReason::filter, reply}};
  }
  if (std::holds_alternative<CounterAccess>(result)) {
    kind = Kind::read;
    return Exit{CounterRead{counter, {data, gp}}};
  }
  if (const auto* port = std::get_if<PortAccess>(&result)) {
    kind = Kind::port;
    access = *port;
    port_data = port->write ? port->value : 0;
    const auto moved = std::as_writable_bytes(std::span{&port_data, 1}).first(port->bytes);
    if (!port->write) return Exit{PortRead{port->port, port->bytes, moved}};
    return Exit{PortWrite{port->port, port->bytes, moved}};
  }
  return std::nullopt;
}

}  // namespace vmm
