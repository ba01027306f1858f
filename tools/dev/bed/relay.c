// Copies standard input to standard output in few large pieces.
//
// A write to a virtio serial port keeps L1's only CPU spinning until the host has taken it. A guest's serial console
// writes character by character, so all output of 10 ms is written together.
#include <stdlib.h>
#include <unistd.h>

int main(void) {
  static char buffer[65536];  // the capacity of a pipe
  for (;;) {
    ssize_t length = read(0, buffer, sizeof buffer);
    if (length <= 0) return length == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
    for (ssize_t done = 0; done < length;) {
      const ssize_t written = write(1, buffer + done, (size_t)(length - done));
      if (written < 0) return EXIT_FAILURE;
      done += written;
    }
    usleep(10000);
  }
}
