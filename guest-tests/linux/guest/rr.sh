# Debian's rr records a program whose threads race, and replays it, N times for vpmu.rounds=N on the kernel's command line. Needs profilers.img:
#   rr rounds N
#   rr record ROUND CODE SWITCHES OUTPUT...     SWITCHES: times that a thread had to stop when its count of branches was used up
#   rr buffered ROUND N                         events of system calls that rr's buffer in the program has recorded without a stop
#   rr replay ROUND CODE OUTPUT...
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

mkdir -p /dev/shm /dev/pts /tmp/rr
mount -t tmpfs shm /dev/shm
ln -s /proc/self/fd /dev/fd
export _RR_TRACE_DIR=/tmp/rr
rounds=$(sed -n 's/.*vpmu\.rounds=\([0-9]*\).*/\1/p' /proc/cmdline)
say rr "rounds $rounds"
round=1
while [ "$round" -le "$rounds" ]; do
  code=0
  rr record -c 2000 racing 20 >/tmp/out 2>/tmp/err || code=$?
  if [ "$code" -ne 0 ]; then say error "rr record: $(head -c 400 /tmp/err | tr '\n' ' ')"; fi
  rr dump /tmp/rr/latest-trace >/tmp/dump 2>/dev/null || true
  say rr "record $round $code $(grep -c SCHED /tmp/dump) $(cat /tmp/out)"
  say rr "buffered $round $(grep -c SYSCALLBUF_FLUSH /tmp/dump)"
  code=0
  rr replay -a >/tmp/out 2>/tmp/err || code=$?
  if [ "$code" -ne 0 ]; then say error "rr replay: $(head -c 400 /tmp/err | tr '\n' ' ')"; fi
  say rr "replay $round $code $(cat /tmp/out)"
  rm -rf /tmp/rr/*
  round=$((round + 1))
done
