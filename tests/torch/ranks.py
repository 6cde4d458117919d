"""What the processes of the distributed tests run; kept apart so that they import nothing else."""

from __future__ import annotations

import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.torch.helpers import batch, duals, make, network, terms

STEPS, TOTAL = 5, 24
#: Seconds for all cases together, and for one collective call.
LIMIT = 600


#: How many samples of each batch go to each rank.
PARTS = {1: [24], 2: [5, 19], 4: [1, 0, 9, 14]}
CASES = [("paper", "ddp", 1), ("paper", "ddp", 2), ("paper", "ddp", 4), ("adam", "ddp", 2)]
CASES += [("paper", "fsdp", 2), ("adam", "fsdp", 2)]


def calibrated(kind, opt):
    if kind != "paper":
        opt.param_groups[0].update(ratio=torch.full((3,), 0.5, dtype=torch.float64))
    return opt


def build(kind, how, world):
    """A model on the first ``world`` ranks and its optimizer; None on the others."""
    group = dist.new_group(list(range(world)))
    if dist.get_rank() >= world:
        return None
    net = network()
    if how == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(net, process_group=group)
    else:
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(group, "cpu")
        for layer in (net[0], net[2]):
            fully_shard(layer, mesh=mesh)
        model = fully_shard(net, mesh=mesh)
    return model, make(kind, model.parameters(), process_group=group)


def train(kind, how, world, folder):
    """Train on unequal parts of the same batches, some of them empty; their means are NaN and must not matter."""
    built = build(kind, how, world)
    if built is None:
        return {}
    model, opt = built
    calibrated(kind, opt)
    grads, lams = [], []
    for i in range(STEPS):
        x = batch(i, n=TOTAL).split(PARTS[world])[dist.get_rank()]
        opt.zero_grad()
        opt.lagrangian(*terms(model, x), samples=len(x)).backward()
        grads.append(torch.cat([whole(p.grad).flatten() for p in model.parameters()]).clone())
        opt.step()
        lams.append(opt.multipliers)
    result = {"grads": grads, "lams": lams}
    if how == "fsdp":
        result["checkpoints"] = checkpoint(model, opt, kind, folder)
    return result


def whole(t):
    return t.full_tensor() if hasattr(t, "full_tensor") else t


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
        group, where = opt._group._group, f"{folder}/dcp{flat_form}"
        dcp.save({"o": get_optimizer_state_dict(model, opt, options=options)}, checkpoint_id=where, process_group=group)
        fresh = make(kind, model.parameters())
        target = {"o": get_optimizer_state_dict(model, fresh, options=options)}
        dcp.load(target, checkpoint_id=where, process_group=group)
        set_optimizer_state_dict(model, fresh, target["o"], options=options)
        a, b = duals(opt), duals(fresh)
        equal[f"flat={flat_form}"] = all(
            torch.equal(a[k], b[k]) if isinstance(a[k], torch.Tensor) else a[k] == b[k] for k in a
        )
    return equal


def calibrate(how):
    """Calibration over ranks, each with batches of its own."""
    built = build("adam", how, 2)
    if built is None:
        return {}
    model, opt = built
    for i in range(20):
        opt.zero_grad()
        opt.lagrangian(*terms(model, batch(10 * i + dist.get_rank()))).backward()
        opt.step()
    return duals(opt)


def disagree():
    """One rank has a value that is not finite: all of them skip the step."""
    model, opt = build("paper", "ddp", 4)
    for i in range(3):
        opt.zero_grad()
        f, g = terms(model, batch(i))
        if i == 1 and dist.get_rank() == 2:
            g["norm"] = g["norm"] * float("nan")
        opt.lagrangian(f, g).backward()
        opt.step()
    return {"steps": opt.dual_steps, "skipped": opt.skipped, "lam": opt.multipliers}


def spoiled():
    """One shard of one gradient is not finite on one rank: all of them skip the step."""
    built = build("adam", "fsdp", 2)
    if built is None:
        return {}
    model, opt = built
    for i in range(3):
        before, lam = [whole(p).clone() for p in model.parameters()], opt.multipliers
        opt.zero_grad()
        opt.lagrangian(*terms(model, batch(i))).backward()
        if i == 1 and dist.get_rank() == 1:
            next(model.parameters()).grad.to_local().view(-1)[0] = float("inf")
        opt.step()
        same = [torch.equal(p, whole(q)) for p, q in zip(before, model.parameters(), strict=True)]
        if i == 1:
            kept = all(same) and torch.equal(lam, opt.multipliers)
    return {"kept": kept, "steps": opt.dual_steps, "skipped": opt.skipped}


def work(rank, world, folder):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous"
    dist.init_process_group(
        "gloo", init_method=rendezvous, rank=rank, world_size=world, timeout=timedelta(seconds=LIMIT)
    )
    try:
        results = {f"{kind} {how} {w}": train(kind, how, w, f"{folder}/{kind}") for kind, how, w in CASES}
        results["calibrate"] = {how: calibrate(how) for how in ("ddp", "fsdp")}
        results["disagree"] = disagree()
        results["spoiled"] = spoiled()
        torch.save(results, f"{folder}/rank{rank}")
        dist.barrier()  # leave together: gloo may abort a rank whose peer is gone
    finally:
        dist.destroy_process_group()


def spawn(folder, world=4):
    """Run every case on ``world`` processes and return what each of them saw."""
    method = "forkserver" if "forkserver" in mp.get_all_start_methods() else "spawn"
    if method == "forkserver":  # which imports torch once for all ranks
        mp.set_forkserver_preload(["tests.torch.ranks", "torch.distributed.fsdp"])
    processes = mp.start_processes(work, args=(world, str(folder)), nprocs=world, join=False, start_method=method)
    deadline = time.monotonic() + LIMIT
    while not processes.join(timeout=5):
        if time.monotonic() > deadline:
            for process in processes.processes:
                process.kill()
            raise TimeoutError(f"the cases on {world} ranks did not end within {LIMIT} s")
    return [torch.load(f"{folder}/rank{r}", weights_only=True) for r in range(world)]
