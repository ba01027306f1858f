#include "vpmu/pmu.hpp"
#include "vpmu/registers.hpp"

namespace vpmu {
namespace {

bool is_store_event(Counts counts) {
  return counts == Counts::stores || counts == Counts::split_stores || counts == Counts::stlb_miss_stores;
}

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

// The record shows the state after the instruction, RIP the next one (rules P3, P4, P7, P8, P9, T4).
PebsRecord Pmu::compose(CounterSet triggers, CounterSet served, const Retirement& r, std::uint64_t tsc) const {
  PebsRecord record;
  compose_registers(record, r);
  record[Slot::rip] = r.next_ip.value();
  record[Slot::status] = desc_.pebs_format >= 3 ? served.gp_bits() : state_.global_status;
  record[Slot::eventing_ip] = r.ip.value();
  record[Slot::tsc] = tsc;
  compose_memory(record, triggers, r);
  return record;
}

// 98H, A0H, A8H: from the facility of the lowest trigger that has one, else 0 (rules L6, L8, S1 to S5, P23).
void Pmu::compose_memory(PebsRecord& record, CounterSet triggers, const Retirement& r) const {
  for (const CounterId c : triggers) {
    const EventClass& event = class_of(c);
    if (load_latency_enabled(c)) {
      record[Slot::data_address] = r.load.address.value();
      record[Slot::data_source] = encode_data_source(desc_, r.load);
      record[Slot::latency] = r.load.latency;
      return;
    }
    if (precise_store_enabled(c) && r.has_store) {
      record[Slot::data_address] = r.store.address.value();
      record[Slot::data_source] = encode_store_status(r.store);
      return;
    }
    if (!desc_.features.data_la || !event.data_la) continue;
    const bool any_uop = event.counts == Counts::uops_retired;
    if (any_uop && spec_[c.number()].cmask != 0) continue;  // counts cycles: no uop triggers
    const bool store = is_store_event(event.counts) || (any_uop && r.has_store);
    const bool load = !store && r.has_load;
    if (!load && !(store && r.has_store)) return;
    record[Slot::data_address] = (store ? r.store : r.load).address.value();
    if (store && (event.l1_hit_indication || any_uop))
      record[Slot::data_source] = reg::data_source::DCU_HIT::make(r.store.level == HitLevel::l1 ? 1 : 0);
    return;
  }
}

}  // namespace vpmu
