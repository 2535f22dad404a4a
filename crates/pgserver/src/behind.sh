# When a process is gone, killed or not: ends what it left at work in its folder, and removes that.
#
# usage: sh behind.sh FOLDER, with standard input a pipe whose other end that process alone holds
# and never writes to.

trap '' HUP INT TERM
cat >/dev/null

# Servers and their programs work in their data folders.
at_work() {
    find /proc/[0-9]*/cwd -maxdepth 0 -lname "$1/*" 2>/dev/null | cut -d/ -f3
}

# QUIT stops a server at once, and lets it give back its shared memory.
signal=QUIT
for moment in $(seq 600); do
    pids=$(at_work "$1")
    [ -n "$pids" ] || break
    [ "$moment" -lt 300 ] || signal=KILL
    # shellcheck disable=SC2086
    kill -s $signal $pids 2>/dev/null
    sleep 0.1
done
grep -o " $1/[^ ]*" /proc/mounts | while read -r place; do umount -l "$place"; done
rm -rf "$1"
