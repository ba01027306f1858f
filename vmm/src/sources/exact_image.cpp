// Saves and restores what the exact source has learnt about the guest: the state of its processor model.
#include <algorithm>

#include "sources/exact_source.hpp"
#include "vcpu/engine_state.hpp"

namespace vmm {

// An engine that continues from the image knows only the current page tables, so a pending TLB flush is done here.
Result<Bytes> ExactSource::save(VcpuPort& port) {
  if (model_ == nullptr) return Bytes{};
  VMM_ASSIGN(const kvm_regs regs, port.regs());
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  if (engine_.would_flush(engine_state(regs, sregs))) model_->flushed();
  ByteWriter out;
  model_->visit_state([&out](std::span<std::byte> part) { out.put_run(part); }, engine_.observed());
  return out.take();
}

Result<bool> ExactSource::restore(VcpuPort& port, std::span<const std::byte> image) {
  if (image.empty()) return true;
  VMM_ASSIGN(const kvm_regs regs, port.regs());
  VMM_ASSIGN(const kvm_sregs sregs, port.sregs());
  engine_.load(engine_state(regs, sregs));
  make_model();
  ByteReader in{image};
  bool fits = true;
  const auto take = [&in, &fits](std::span<std::byte> part) {
    const auto saved = in.get_run();
    fits = fits && saved.size() == part.size();
    if (fits) std::ranges::copy(saved, part.begin());
  };
  model_->visit_state(take, engine_.observed());
  return fits && in.done();
}

}  // namespace vmm
