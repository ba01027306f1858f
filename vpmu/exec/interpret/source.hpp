#pragma once
#include "exec/interpret/ops.hpp"
#include "exec/memory/access.hpp"
#include "exec/state/dispatch.hpp"

namespace vpmu::exec {

/// The source operand. False: the engine must stop, Core::stop saying why.
template <Form F, class T>
VPMU_PART_OF_OP bool read_source(const Op* op, Core* c, T& value) {
  if constexpr (F == Form::reg_reg) value = reg<T>(c, op->s);
  if constexpr (F == Form::reg_imm) value = static_cast<T>(op->imm);
  if constexpr (F == Form::reg_mem) return load(c, address(op, c), value);
  return true;
}

}  // namespace vpmu::exec
