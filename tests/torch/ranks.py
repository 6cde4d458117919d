"""What the processes of the distributed tests run; kept apart so that they import nothing else."""

from __future__ import annotations

import os
import sys
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.torch.helpers import batch, duals, make, network, terms

STEPS, TOTAL = 5, 24


def parts(world, uneven):
    """How many samples of each batch go to each rank."""
    if not uneven:
        return [TOTAL // world] * world
    sizes = {1: [24], 2: [5, 19], 4: [1, 0, 9, 14]}[world]
    return sizes


def calibrated(kind, opt):
    if kind != "paper":
        opt.param_groups[0].update(calibrated=True, ratio=torch.full((3,), 0.5), size=torch.ones(3))
    return opt


def local_terms(net, x):
    """Terms of a local batch; of an empty one they are NaN, as means of nothing are."""
    return terms(net, x)


def work(rank, world, kind, how, uneven, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    try:
        net = network()
        if how == "fsdp":
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.fsdp import fully_shard

            mesh = init_device_mesh("cpu", (world,))
            for layer in (net[0], net[2]):
                fully_shard(layer, mesh=mesh)
            fully_shard(net, mesh=mesh)
            model = net
        else:
            model = torch.nn.parallel.DistributedDataParallel(net)
        opt = calibrated(kind, make(kind, model.parameters()))
        grads, lams = [], []
        for i in range(STEPS):
            x = batch(i, n=TOTAL).split(parts(world, uneven))[rank]
            opt.zero_grad()
            loss = opt.lagrangian(*local_terms(model, x), samples=len(x))
            loss.backward()
            full = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
            grads.append(torch.cat([g.flatten() for g in full]).clone())
            opt.step()
            lams.append(opt.multipliers)
        weights = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]
        result = {"grads": grads, "lams": lams, "weights": torch.cat([w.detach().flatten() for w in weights])}
        if how == "fsdp":
            result |= checkpoint(model, opt, kind, folder)
        torch.save(result, f"{folder}/rank{rank}")
    finally:
        dist.destroy_process_group()


def checkpoint(model, opt, kind, folder):
    """Round trip of the sharded optimizer through a distributed checkpoint, nested and flat."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_optimizer_state_dict,
        set_optimizer_state_dict,
    )

    equal = {}
    for flat_form in (False, True):
        options = StateDictOptions(flatten_optimizer_state_dict=flat_form)
        state = get_optimizer_state_dict(model, opt, options=options)
        dcp.save({"o": state}, checkpoint_id=f"{folder}/dcp{flat_form}")
        fresh = make(kind, model.parameters())
        target = {"o": get_optimizer_state_dict(model, fresh, options=options)}
        dcp.load(target, checkpoint_id=f"{folder}/dcp{flat_form}")
        set_optimizer_state_dict(model, fresh, target["o"], options=options)
        a, b = duals(opt), duals(fresh)
        equal[f"flat={flat_form}"] = all(
            torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
        )
    return {"checkpoints": equal}


def calibrate(rank, world, folder):
    """Calibration over ranks gives every rank the same scales."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=world)
    try:
        model = torch.nn.parallel.DistributedDataParallel(network())
        opt = make("adam", model.parameters())
        for i in range(6):
            opt.zero_grad()
            opt.lagrangian(*terms(model, batch(10 * i + rank))).backward()
            opt.step()
        torch.save(duals(opt), f"{folder}/rank{rank}")
    finally:
        dist.destroy_process_group()


def spawn(function, world, folder, *args):
    """Run ``function(rank, world, *args, folder)`` on every rank and return what each saved."""
    sys.path.insert(0, os.getcwd())
    mp.spawn(function, args=(world, *args, str(folder)), nprocs=world)
    return [torch.load(f"{folder}/rank{r}", weights_only=True) for r in range(world)]
