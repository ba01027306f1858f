#include <algorithm>

#include "vpmu/counts.hpp"
#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

// SDM 3B tables 18-24 and 18-33, per generation.
std::uint64_t encode_data_source(const GenerationDesc& desc, const MemAccess& a) {
  namespace ds = reg::data_source;
  const std::uint64_t code = ds::CODE::make(desc.data_source_code[static_cast<unsigned>(a.level)]);
  if (!desc.features.data_source_tlb_lock) return code;
  return code | ds::STLB_MISS::make(a.stlb_miss ? 1 : 0) | ds::LOCK::make(a.locked ? 1 : 0);
}

// Rule P22: outside IA-32e mode registers are 32 bits wide and R8 to R15 do not exist.
void compose_registers(PebsRecord& record, const Retirement& r) {
  if (r.registers == nullptr) return;
  for (unsigned i = 0; i < register_slot_count; ++i) {
    const bool extended = i >= static_cast<unsigned>(Slot::r8);
    const std::uint64_t value = r.registers->value[i];
    record.value[i] = r.long_mode ? value : extended ? 0 : value & low_bits(32);
  }
}

// SDM 3B 18.9.4.3: L1 hit in bit 0 (rule S1).
std::uint64_t encode_store_status(const MemAccess& a) {
  namespace ds = reg::data_source;
  return ds::DCU_HIT::make(a.level == HitLevel::l1 ? 1 : 0) | ds::STLB_MISS::make(a.stlb_miss ? 1 : 0) |
         ds::LOCK::make(a.locked ? 1 : 0);
}

}  // namespace

// The instruction that caused the event (SDM 3B table 18-43). Of a pair it is the branch if only the branch's own
// events have triggered, else the compare (rule P2a).
GuestLinear Pmu::trigger_of(CounterSet triggers, const Retirement& r) const {
  if (r.branch_offset == 0) return r.ip;
  const auto is_of_branch = [&r](Counts kind) { return describe(kind).branches.matches(r.branch); };
  for (const CounterId c : triggers) {
    const EventClass& event = class_of(c);
    const bool is_union = event.counts == Counts::several;
    if (is_union ? !std::ranges::any_of(event.kinds.all(), is_of_branch) : !is_of_branch(event.counts)) return r.ip;
  }
  return r.ip + r.branch_offset;
}

// The record shows the state after the instruction, RIP the next one (rules P3, P4, T4). Without its status and its
// TSC, which are of when it is stored.
PebsRecord Pmu::compose(CounterSet triggers, const Retirement& r) const {
  PebsRecord record;
  compose_registers(record, r);
  record[Slot::rip] = r.next_ip.value();
  record[Slot::eventing_ip] = trigger_of(triggers, r).value();
  compose_memory(record, triggers, r);
  return record;
}

// 90H (rules P7, P8).
std::uint64_t Pmu::record_status(CounterSet served) const {
  return desc_.pebs_format >= 3 ? served.gp_bits() : state_.global_status;
}

// The facility updates these with each load that it has tagged, whether or not that is over the threshold. SDM 3B
// 18.8.1.2.
void Pmu::keep_tagged_load(const MemAccess& load) {
  state_.tagged_address = load.address.value();
  state_.tagged_source = encode_data_source(desc_, load);
  state_.tagged_latency = load.latency;
}

void Pmu::compose_tagged_load(PebsRecord& record) const {
  record[Slot::data_address] = state_.tagged_address;
  record[Slot::data_source] = state_.tagged_source;
  record[Slot::latency] = state_.tagged_latency;
}

// Rule S5: a form that counts cycles is triggered by no uop.
bool Pmu::has_own_memory_fields(CounterId c) const {
  if (load_latency_enabled(c) || precise_store_enabled(c)) return true;
  if (!desc_.features.data_la || !class_of(c).data_la) return false;
  return !is_any_retired_uop(class_of(c).counts) || spec_[c.number()].cmask == 0;
}

// 98H, A0H, A8H: from the facility of the lowest trigger that has one; without one, what load latency has seen last;
// else 0 (rules L6, L8, S1 to S5, P23). Of an instruction that loads and stores, an event that counts both counts the
// store last.
void Pmu::compose_memory(PebsRecord& record, CounterSet triggers, const Retirement& r) const {
  for (const CounterId c : triggers) {
    if (!has_own_memory_fields(c)) continue;
    if (load_latency_enabled(c)) return compose_tagged_load(record);
    if (precise_store_enabled(c)) {
      if (!r.has_store) continue;
      record[Slot::data_address] = r.store.address.value();
      record[Slot::data_source] = encode_store_status(r.store);
      return;
    }
    const EventClass& event = class_of(c);
    const bool any_uop = is_any_retired_uop(event.counts) || event.counts == Counts::several;
    const bool store = r.has_store && (any_uop || describe(event.counts).accesses.stores);
    const bool load = !store && r.has_load && (any_uop || describe(event.counts).accesses.loads);
    if (store || load) record[Slot::data_address] = (store ? r.store : r.load).address.value();
    if (store && (event.l1_hit_indication || any_uop))
      record[Slot::data_source] = reg::data_source::DCU_HIT::make(r.store.level == HitLevel::l1 ? 1 : 0);
    return;
  }
  if (load_latency_runs()) compose_tagged_load(record);
}

}  // namespace vpmu
