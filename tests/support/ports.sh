# SPDX-License-Identifier: Apache-2.0
#
# ports.sh: ports of this machine, for servers that tests start. Sourced, not run.
#
#     free_ports COUNT        so many ports that nobody listens at, in one line
#     ports_answer PORT...    true if somebody listens at each

free_ports() {
    /usr/bin/python3 -c '
import socket, sys
sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*[each.getsockname()[1] for each in sockets])' "$1"
}

ports_answer() {
    local port
    for port in "$@"; do
        (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null || return 1
    done
}
