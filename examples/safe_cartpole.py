"""CartPole under two budgets: the share of time off the middle of the track, and how often the force is switched.

python examples/safe_cartpole.py --updates 400 --seeds 3 --out results/cartpole      (toy size: --updates 12 --seeds 1)

Ctrl-C and SIGTERM end it after an update (exit code 130 or 143). Repeat the command to continue with the next run.
"""

import argparse
import sys
from pathlib import Path

import torch
from actor_critic import ActorCritic
from cartpole import CostlyCartPole, learning_chart

from gdpa import StopRequest
from gdpa.paper.figures import save
from gdpa.paper.provenance import about
from gdpa.paper.records import RecordFile

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--updates", type=int, default=400)
parser.add_argument("--seeds", type=int, default=3)
parser.add_argument("--out", type=Path, default=Path("results/cartpole"))
given = parser.parse_args()
given.out.mkdir(parents=True, exist_ok=True)
torch.set_num_threads(1)

budgets = {"position": 0.05, "switching": 0.25}
runs: dict[str, list] = {"GDPA": [], "plain policy gradient": []}
records = RecordFile(given.out / "records.jsonl")
origin = about(f"python examples/safe_cartpole.py --updates {given.updates} --seeds {given.seeds}")
same = {name: origin[name] for name in ("command", "commit")}
records.replace(row for row in records.rows() if same.items() <= row["about"].items())
done = {(row["method"], row["seed"]): row["columns"] for row in records.rows()}


def leave_if_asked(row):
    if stop:
        print(f"{len(done)} finished runs are recorded in {records.path}", flush=True)
        sys.exit(stop.exit_code)


with StopRequest() as stop:
    for method, finished in runs.items():
        ours = method == "GDPA"
        learner = ActorCritic(CostlyCartPole, budgets, constrained=ours, warmup=given.updates // 4, dual_rate=0.2)
        for seed in range(given.seeds):
            if (method, seed) not in done:
                trained = learner.train(given.updates, seed, report=leave_if_asked)
                done[method, seed] = {name: [row[name] for row in trained.rows] for name in trained.rows[0]}
                last = {"method": method, "seed": seed, "evaluation": trained.evaluate(episodes=50)}
                records.append({**last, "columns": done[method, seed], "about": origin})
                print(last, flush=True)
            finished.append(done[method, seed])
print("drawn:", *save(learning_chart(runs, budgets), given.out))
