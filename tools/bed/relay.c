// Passes standard input on to standard output in few large pieces.
//
// A write to a virtio serial port keeps L1's only CPU spinning until the other side has taken it. A guest's serial
// console comes character by character, so what comes within 10 ms goes out together.
#include <stdlib.h>
#include <unistd.h>

int main(void) {
  static char buffer[65536];  // as much as a pipe holds
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
