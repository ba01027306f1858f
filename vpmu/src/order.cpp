#include "vpmu/order.hpp"

namespace vpmu {

ServiceOrder service_order(const Simultaneous& due) {
  ServiceOrder order;
  bool assist_pending = !due.triggered.empty();
  const auto assist_here = [&] {
    order.steps[order.size++] = {StepKind::pebs_assist, due.triggered.first()};
    assist_pending = false;
  };
  for (const CounterId c : due.overflow_pmi | due.triggered) {
    if (assist_pending && due.triggered.has(c)) assist_here();
    if (!due.overflow_pmi.has(c)) continue;
    order.steps[order.size++] = {StepKind::overflow_pmi, c};
  }
  return order;
}

}  // namespace vpmu
