/* How a program in L1 (channel.c) asks the machine around it for input and output: it writes the linear address of a request,
   below 4 GiB and in memory, to the port. One for both sides. */
#ifndef BED_CHANNEL_H
#define BED_CHANNEL_H

#include <stdint.h>

enum { bed_channel_port = 0x7E0, bed_channel_count = 8, bed_channel_most = 1 << 20 };

enum bed_channel_what { bed_channel_write = 1, bed_channel_read = 2 };

struct bed_channel_request {
  uint32_t what;
  uint32_t channel;
  uint64_t buffer; /* linear address, in memory */
  uint32_t bytes;  /* that there are, or that fit */
  int32_t done;    /* the answer: how many were written or read, 0 at the end of input, or -errno */
};

#endif
