"""The opening of evenstep's process group: missing ranks, and hosts whose name resolves to a loopback address."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from programs import PATIENCE_S

#: Rank 1 hangs or ends at a point of the start. Rank 0 waits for it as long as its own process group does.
START = """
import os, signal, sys
from datetime import timedelta
import torch
import torch.distributed as dist
import evenstep, evenstep.start.group

rank, folder, point = int(sys.argv[1]), sys.argv[2], sys.argv[3]
evenstep.start.group.PATIENCE_MIN = timedelta(0)
timeout = timedelta(seconds=5)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timeout)
dist.barrier()
os.environ["LOCAL_RANK"] = str(rank)
if rank == 1 and point == "comes":
    os.kill(os.getpid(), signal.SIGSTOP)
if rank == 1 and point == "compares":
    dist.all_gather_object = lambda *_, **__: os._exit(0)
evenstep.init(plan=[2, 2]).loader(range(4))
"""


@pytest.mark.parametrize(
    ("point", "said"),
    [
        ("comes", "rank 0: another rank did not come within 5 s or cannot be reached: all ranks must call job.loader"),
        ("compares", "rank 0: another rank ended or hung while ranks compared their settings"),
    ],
)
def test_a_missing_rank_is_an_error_that_names_what_was_waited_for(point: str, said: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(START)
    command = [sys.executable, "-W", "ignore", str(script)]
    other = subprocess.Popen([*command, "1", str(tmp_path), point])
    try:
        waits = subprocess.run(
            [*command, "0", str(tmp_path), point], capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False
        )
    finally:
        other.kill()
        other.wait()
    assert said in waits.stderr, waits.stderr


#: A host with its own network. Its name resolves to 127.0.1.1, as on Debian. The other host's name is right. As with
#: NCCL, the network interface is known to the training's group only.
HOST = """
import os, subprocess, sys
rank, folder, other, master = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]

def run(command):
    subprocess.run(command, shell=True, check=True)

names = f"{folder}/hosts-{rank}"
with open(names, "w") as hosts:
    print("127.0.0.1 localhost", f"127.0.1.1 host-{rank}", f"10.99.0.{2 - rank} host-{1 - rank}", sep="\\n", file=hosts)
run(f"mount --bind {names} /etc/hosts && hostname host-{rank} && ip link set lo up")
if rank == 1:
    run(f"ip link add net0 type veth peer name net0 netns {other}")
    for at, enters in ((1, f"nsenter --net=/proc/{other}/ns/net"), (2, "")):
        for command in (f"address add 10.99.0.{at}/24 dev net0", "link set net0 up", "route add default dev net0"):
            run(f"{enters} ip {command}")
print("ready", flush=True)
sys.stdin.readline()

import torch.distributed as dist
import evenstep
os.environ |= {"MASTER_ADDR": master, "GLOO_SOCKET_IFNAME": "net0"}
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
dist.barrier()
del os.environ["GLOO_SOCKET_IFNAME"]
loader = evenstep.init(plan=[2, 2]).loader(range(8))
assert "GLOO_SOCKET_IFNAME" not in os.environ
dist.barrier()
print(len(loader))
"""

_OWN_NETWORK = ["unshare", "--mount", "--net", "--uts"]


def _has_namespaces() -> bool:
    if not all(shutil.which(program) for program in ("unshare", "nsenter", "ip", "mount")):
        return False
    joins = "ip link add net0 type veth && mount --bind /etc/hosts /etc/hosts"
    return subprocess.run([*_OWN_NETWORK, "sh", "-c", joins], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not _has_namespaces(), reason="this machine allows no network namespaces")
@pytest.mark.parametrize("master", ["10.99.0.1", "host-0"])
def test_hosts_whose_name_resolves_to_a_loopback_address(master: str, tmp_path: Path) -> None:
    """Gloo would publish 127.0.1.1. The name of the first host, too, is a loopback address there."""
    hosts: list[subprocess.Popen[str]] = []
    try:
        for rank in range(2):
            other = str(hosts[0].pid) if hosts else "-"
            command = [*_OWN_NETWORK, sys.executable, "-c", HOST, str(rank), str(tmp_path), other, master]
            hosts.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            assert hosts[-1].stdout is not None
            assert hosts[-1].stdout.readline() == "ready\n"
        for host in hosts:
            assert host.stdin is not None
            host.stdin.write("\n")
            host.stdin.flush()
        told = [host.communicate(timeout=2 * PATIENCE_S)[0] for host in hosts]
        # Gloo of PyTorch 2.8 prints its connections.
        assert [lines.splitlines()[-1:] for lines in told] == [["2"], ["2"]]
    finally:
        for host in hosts:
            host.kill()
            host.wait()
