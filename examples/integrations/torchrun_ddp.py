"""Data-parallel training with torchrun. Start it with

    torchrun --nproc-per-node 2 examples/integrations/torchrun_ddp.py

Each rank has batches of its own size; ``samples=`` lets the optimizer pool them before the weights are formed.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import gdpa.torch


@record  # torchrun then shows the traceback of the rank that failed
def main():
    dist.init_process_group("gloo", timeout=timedelta(minutes=1))  # of a start or a step without the other ranks
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(torch.nn.Linear(4, 1))
    opt = gdpa.torch.constrain(torch.optim.Adam(net.parameters(), lr=0.02), ["mean"])
    rng = torch.Generator().manual_seed(rank)
    for _ in range(500):
        x = torch.randn(16 + 16 * rank, 4, generator=rng)
        opt.zero_grad()
        out = net(x).squeeze(-1)
        loss = opt.lagrangian((out - x[:, 0]).square().mean(), {"mean": 1 - out.mean()}, samples=len(x))
        loss.backward()
        opt.step()
    lam = [torch.zeros_like(opt.multipliers) for _ in range(dist.get_world_size())]
    dist.all_gather(lam, opt.multipliers)
    if rank == 0:
        print(opt.report(tolerance=0.2))
        print("multipliers equal on all ranks:", all(torch.equal(one, lam[0]) for one in lam))
    dist.barrier()  # leave together: gloo's threads may abort a rank whose peer is gone
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
