"""Training that survives kills, signals and frozen ranks, and ends as if nothing had happened. Start it with

    torchrun --nproc-per-node 2 --max-restarts 20 examples/integrations/torchrun_restarts.py FOLDER

or with python alone, on one process. Repeat the command to continue from the last checkpoint in FOLDER.

- Rank 0 saves every 20 steps. If a rank is killed, torchrun starts all of them again, and they load the newest file.
- SIGTERM and Ctrl-C: all ranks finish the same step, rank 0 saves it and says where, and they end by the signal.
- A frozen rank: the others wait for it for 40 seconds, name it and end; torchrun starts all of them again.
- The order of the data depends on the step alone, random numbers are part of the checkpoint.
"""

import io
import os
import signal
import sys
import threading
import time
import zlib
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import gdpa.torch
from gdpa import Checkpoints, StopRequest

BATCH, EVERY = 16, 20
TIMEOUT = timedelta(seconds=40)  # of a start or a step without the other ranks


def batch_of(step, rank, ranks, x):
    """The samples of a step: an order for each epoch, dealt out to the ranks."""
    epoch, place = divmod(step, len(x) // (BATCH * ranks))
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
    first = (place * ranks + rank) * BATCH
    return order[first : first + BATCH]


def gathered(tensor):
    """The tensor of every rank."""
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, tensor)
    return parts


def agreed(stop):
    """Whether any rank was asked to stop: they must end after the same step."""
    flag = torch.tensor([float(bool(stop))])
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def save(checkpoints, step, net, opt, seen):
    """Write everything the run depends on; the random numbers and the data seen are those of every rank."""
    parts = gathered(torch.get_rng_state()), gathered(seen)
    if dist.get_rank() == 0:
        buffer = io.BytesIO()
        torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "parts": parts}, buffer)
        return checkpoints.save(step, torch.frombuffer(buffer.getbuffer(), dtype=torch.uint8))
    return None


def load(checkpoints, net, opt, seen):
    """Load the newest checkpoint on every rank and return its step, 0 if there is none."""
    newest = checkpoints.newest()
    if newest is None:
        return 0
    state = torch.load(io.BytesIO(newest.value.numpy().tobytes()), weights_only=True)
    net.load_state_dict(state["net"])
    opt.load_state_dict(state["opt"])
    rng, order = (part[dist.get_rank()] for part in state["parts"])
    torch.set_rng_state(rng)
    seen.copy_(order)
    return newest.step


def show_life(folder, rank):
    """Touch a file every second as long as this process runs; a frozen one does not."""
    while True:
        Path(folder, f"rank-{rank}.alive").touch()
        time.sleep(1)


def silent(folder, ranks):
    """Name the ranks that have shown no life for half of the limit of time."""
    seen = {rank: Path(folder, f"rank-{rank}.alive").stat().st_mtime for rank in range(ranks)}
    late = {rank: max(seen.values()) - moment for rank, moment in seen.items()}
    late = {rank: seconds for rank, seconds in late.items() if seconds > TIMEOUT.total_seconds() / 2}
    return ", ".join(f"rank {rank} has been silent for {s:.0f} s" for rank, s in late.items()) or "a rank is gone"


def train(folder, steps, stop):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    x = torch.randn(512, 4, generator=torch.Generator().manual_seed(7))
    net = torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Dropout(0.1), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    net = DistributedDataParallel(net)
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.02), ["mean"])
    checkpoints = Checkpoints(f"{folder}/train")
    seen = torch.zeros(1, dtype=torch.int64)  # a checksum of the samples in their order
    step = load(checkpoints, net, opt, seen)
    threading.Thread(target=show_life, args=(folder, rank), daemon=True).start()
    print(f"rank {rank} is process {os.getpid()} and begins at step {step}", flush=True)
    while step < steps:
        try:
            samples = batch_of(step, rank, ranks, x)
            opt.zero_grad()
            out = net(x[samples]).squeeze(-1)
            loss = (out - x[samples, 0]).square().mean()
            opt.lagrangian(loss, {"mean": 0.5 - out.mean()}, samples=len(samples)).backward()
            opt.step()
            seen.fill_(zlib.crc32(samples.numpy().tobytes(), int(seen)))
            step += 1
            ends = agreed(stop)
            if ends or step % EVERY == 0 or step == steps:
                path = save(checkpoints, step, net, opt, seen)
        except RuntimeError as error:  # a rank is gone, or did not answer within the limit of time
            print(f"rank {rank}: {silent(folder, ranks)} ({error})", file=sys.stderr, flush=True)
            os._exit(1)  # without waiting for the others; torchrun starts all of them again
        if ends:
            if rank == 0:
                name = signal.Signals(stop.number or signal.SIGTERM).name
                print(f"{name}: step {step} is saved in {path}", flush=True)
            return
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    order = [int(part) for part in gathered(seen)]
    if rank == 0:
        print(opt.report(tolerance=0.2))
        sums = zlib.crc32(weights.numpy().tobytes()), zlib.crc32(opt.multipliers.numpy().tobytes())
        print(f"end: step {step}, weights {sums[0]:08x}, multipliers {sums[1]:08x}, data {order}", flush=True)


def join():
    """Meet the other ranks.

    Every attempt has keys of its own. torchrun keeps its store from one attempt to the next, and with it the addresses
    of ranks that are gone: a rank that reads one of them waits for nobody.
    """
    rank, ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    store = dist.HashStore()
    if ranks > 1:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=False, timeout=TIMEOUT)
        store = dist.PrefixStore(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", store)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)


def main():
    folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400
    Path(folder).mkdir(parents=True, exist_ok=True)
    with StopRequest() as stop:
        join()
        train(folder, steps, stop)
        dist.barrier()  # leave together: gloo's threads may abort a rank whose peer is gone
        dist.destroy_process_group()
    sys.exit(stop.exit_code)


if __name__ == "__main__":
    main()
