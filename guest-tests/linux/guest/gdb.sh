# Debian's gdb stops loop8 while perf counts its instructions in user mode. Needs profilers.img.
#   gdb HOW RDI OFFSET COUNT      where loop8 stands, by its register and from its label loop8; what was counted
# shellcheck shell=dash disable=SC1091
. /guest/speak.sh

# A child that stands before its first instruction, and is counted from there: it goes on when perf has its event open.
cat >/tmp/count_child <<'END'
perf stat -x, -o /tmp/counted -e instructions:u -p "$(pidof loop8)" &
while kill -0 $! && ! ls -l /proc/$!/fd | grep -q perf_event; do sleep 1; done
sleep 2
END
count_child="shell sh /tmp/count_child"
for how in "stepi 902" "break *loop8_branch; ignore 1 99; continue"; do
  code=0
  printf '%s\n' "set debuginfod enabled off" starti "$count_child" "$how" 'printf "stands %lu %ld\n", $rdi, (long)$rip - (long)&loop8' kill |
    tr ';' '\n' >/tmp/commands
  gdb -nx -batch -x /tmp/commands /bin/loop8 >/tmp/gdb 2>&1 || code=$?
  while pidof perf >/dev/null; do sleep 1; done
  say gdb "${how%% *} $(sed -n 's/^stands //p' /tmp/gdb) $(sed -n 's/^\([0-9]*\),.*instructions.*/\1/p' /tmp/counted)"
  if [ "$code" -ne 0 ]; then say error "gdb ended with $code: $(tail -n 5 /tmp/gdb | tr '\n' ' ')"; fi
done
